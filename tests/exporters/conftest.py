"""Fixtures with one Chromium for all tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile
from tests.exporters.browser import Browser
from tests.exporters.page import Page
from tests.exporters.support import PLAIN, export

OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Yield a function that writes a page and opens it. A page may neither log anything nor load anything.

    With folded=True the start-up frames of programs and threads stay one row, as in the initial view.
    """
    opened: list[Path] = []

    def open_(profile: Profile, options: ExportOptions = PLAIN, folded: bool = False, **media: Any) -> Page:
        path = tmp_path / f"{len(opened)}.html"
        path.write_bytes(export("flamegraph", profile, options))
        opened.append(path)
        browser.open(path, **media)
        if not folded:
            browser.press("u")
        return Page(browser)

    yield open_
    if opened:
        assert browser.complaints() == []
        assert browser.requests() == [opened[-1].as_uri()]
