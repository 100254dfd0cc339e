"""Marks, groups and reruns of all tests; one folder of builds a run, whichever processes it has."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests import marks, support

FOLDER = Path(__file__).parent
RERUNS_OF_LIVE_TESTS = 2


def pytest_configure(config: pytest.Config) -> None:
    for kind, meaning in marks.KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")
    config.addinivalue_line("markers", "xdist_group(name): tests that stay together in one worker")
    support.only_units = config.option.markexpr == "unit"
    if support.BUILDS not in os.environ:  # a worker has its controller's
        os.environ[support.BUILDS] = tempfile.mkdtemp(prefix="pyprof-builds-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(support.BUILDS), ignore_errors=True))


@pytest.hookimpl(tryfirst=True)  # the workers read the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    together = {item.path for item in items if has_fixture_of_its_module(item)}
    for item in items:
        kinds = {mark.name for mark in item.iter_markers()} & marks.KINDS.keys()
        if not kinds:
            kinds = marks.of(item.path.relative_to(FOLDER).as_posix())
            for kind in kinds:
                item.add_marker(kind)
        if "live" in kinds and item.config.option.reruns is None:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS_OF_LIVE_TESTS))
        if item.path in together:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def has_fixture_of_its_module(item: pytest.Item) -> bool:
    """Files with such tests stay together in one worker, so that the fixture is made once."""
    fixtures = item._fixtureinfo.name2fixturedefs
    return any(found and found[-1].scope == "module" for found in fixtures.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Each rerun with what failed before it: a live test that often needs one is a finding."""
    reruns = terminalreporter.stats.get("rerun", [])
    if reruns:
        terminalreporter.section(f"{len(reruns)} reruns")
    for report in reruns:
        crash = getattr(report.longrepr, "reprcrash", None)
        terminalreporter.write_line(f"{report.nodeid}: {crash.message.splitlines()[0] if crash else report.longrepr}")
