"""Tests of the page of a comparison: colours, table and tooltip show the change in every view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.comparison.result import Comparison, both
from tests.comparison.simulated import SHARES, recording
from tests.exporters.browser import Browser
from tests.exporters.page import Page
from tests.exporters.profiles import EVIL, golden

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """Compare two recordings with one function slower, one faster, one removed and one added."""
    shares = SHARES | {"slowed": 0.3, "big": 0.2, EVIL: 0.1}
    del shares["middle"]
    return recording(0, 20).diff(recording(1, 20, shares), normalize="samples")


@pytest.fixture
def page(browser: Browser, compared: Comparison, tmp_path: Path) -> Iterator[Page]:
    path = tmp_path / "changes.html"
    compared.save(path)
    browser.open(path, width=390, height=844, scheme="dark")
    yield Page(browser)
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def row(page: Page, name: str) -> str:
    rows = page.browser.run("Array.from(document.querySelectorAll('#changed tr'), each => each.textContent)")
    return str(next(each for each in rows if name in each))


def test_both_sides_keep_their_totals(compared: Comparison) -> None:
    profile = both(compared)
    assert profile.values.sum(axis=0).tolist() == [compared.before.total, compared.after.total]
    assert len(profile.frames) == len(compared.matching.functions)
    costs = {cost.name: cost.total for cost in profile.top(100, by="total")}
    assert (
        costs["slowed"] == next(c for c in compared.functions if c.name == "slowed").total.after * compared.after.total
    )


def test_cut_stacks_and_other_kinds_of_frames_are_there_too() -> None:
    profile = both(golden().diff(golden()))
    assert profile.values.sum(axis=0).tolist() == [golden().total] * 2
    assert {frame.kind for frame in profile.frames} >= {frame.kind for frame in golden().frames if frame.title}


def test_colours_say_what_grew_and_what_may_be_chance(page: Page) -> None:
    assert page.state("colour") == "change"
    colour = page.browser.run(
        "Object.fromEntries(model.frames.slice(0, model.functions).map((each, at) => [each.name, colours[at]]))"
    )
    noise = page.browser.run("SPECIAL.dark.unknown")
    assert colour["slowed"] != colour["big"]
    assert noise not in (colour["slowed"], colour["big"], colour["middle"], colour[EVIL])
    assert colour["small3"] == noise
    assert "grew" in page.text("#legend")
    assert "not significant" in page.text("#legend")


def test_heading_says_what_was_compared_and_how_it_is_scaled(page: Page) -> None:
    assert "as shares of all" in page.text("#facts")
    assert "4 functions changed significantly" in page.text("#facts")
    assert page.text("#total") == "100 %"
    assert not page.shown("#strip")


def test_table_has_before_after_and_change(page: Page) -> None:
    page.browser.press("f")
    assert page.shown("#changes")
    assert not page.shown("#functions-table")
    assert "→" in row(page, "slowed")
    assert "+4" in row(page, "slowed") or "+5" in row(page, "slowed")
    assert row(page, "middle").startswith("gone")
    assert row(page, "new").startswith("new")
    classes = "Array.from(document.querySelectorAll('#changed tr td:first-child'), each => each.classList[2])"
    found = page.browser.run(classes)
    assert sorted(found[:4]) == ["grew", "grew", "shrank", "shrank"]
    assert set(found[4:]) == {"noise"}
    assert page.browser.run("document.documentElement.scrollWidth") <= 390


def test_search_sandwich_metric_and_undo_work(page: Page) -> None:
    page.search("slowed")
    page.browser.run("setView('table');0")
    assert page.browser.run("document.querySelectorAll('#changed tr').length") == 1
    page.browser.run("document.querySelector('#changed .look').click();0")
    assert page.text("#center-name") == "slowed"
    page.browser.run("setView('graph'), change('metric', 0);0")
    assert "middle" in page.row(2)
    page.browser.run("undo();0")
    assert page.state("metric") == 1


def test_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(
    browser: Browser, compared: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = golden()._repr_html_() + compared._repr_html_()
    (tmp_path / "notebook.html").write_text(
        # An encoding that is not the page's own: the page must not depend on it.
        "<!DOCTYPE html><html data-ready='yes'><meta charset='windows-1252'><title>a notebook</title>"
        "<script>window.heard = []; "
        "addEventListener('message', event => heard.push(event.data))</script>" + shown
    )
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    browser.open(tmp_path / "notebook.html")
    browser.wait("frames.length === 2")
    assert browser.run("document.title") == "a notebook"
    assert (
        browser.run("(() => { try { return frames[0].document.title } catch (e) { return e.name } })()")
        == "SecurityError"
    )
    assert browser.complaints() == []
    monkeypatch.setattr("pyprof.exporters.flamegraph.MAX_BYTES", 1000)
    small = golden()._repr_html_()
    assert "iframe" not in small
    assert "&lt;Profile" in small


def test_tooltip_has_both_sides_and_says_what_may_be_chance(page: Page) -> None:
    page.browser.run("change('bottomUp', true);0")
    assert "→" in page.hover("slowed")
    assert "not significant" not in page.hover("slowed")
    small = page.browser.run("changeFacts(model, model.frames.findIndex(each => each.name === 'small3'))")
    assert small[0][1].endswith(", not significant)")
