"""Marks, order and reruns of all tests; one folder of builds a run, whichever processes it has."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import marks, schedule, support

FOLDER = Path(__file__).parent
RERUNS_OF_LIVE_TESTS = 2

# a busy machine is no error
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("tests"), max_examples=20)  # of 100: all others try those
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--busy-loops", type=int, default=0, metavar="N", help="run N busy loops of normal priority next to the tests"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the busy loops, once a run: xdist's workers leave that to their controller."""
    if hasattr(session.config, "workerinput"):
        return
    for _ in range(session.config.option.busy_loops):
        loop = subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
        session.config.add_cleanup(partial(_end, loop))


def _end(loop: subprocess.Popen[bytes]) -> None:
    loop.kill()
    loop.wait()


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()
    for kind, meaning in marks.KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")
    support.only_units = config.option.markexpr == "unit"
    if support.only_units:
        settings.load_profile("quick")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a thousand commands would each compile what they import
    if support.BUILDS not in os.environ:  # a worker has its controller's
        os.environ[support.BUILDS] = tempfile.mkdtemp(prefix="pyprof-builds-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(support.BUILDS), ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m unit` imports no file that holds none: most files do."""
    if not support.only_units or not collection_path.match("test_*.py"):
        return None
    name = collection_path.relative_to(FOLDER).as_posix()
    return True if collection_path.is_relative_to(FOLDER) and "unit" not in marks.of(name) else None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are no names: what gzip packs has the second of that in it, and two processes would collect other tests."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again, some hundred times."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: schedule.rank(item.path.relative_to(FOLDER).as_posix()))
    for item in items:
        kinds = {mark.name for mark in item.iter_markers()} & marks.KINDS.keys()
        if not kinds:
            kinds = set(marks.of(item.path.relative_to(FOLDER).as_posix()))
            for kind in kinds:
                item.add_marker(kind)
        if "live" in kinds and item.config.option.reruns is None:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS_OF_LIVE_TESTS))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Signals that a test left blocked would keep later ones from being timed out, and their programs from ending."""
    if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        pytest.fail(f"{item.nodeid} left {len(blocked)} signals blocked", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Each rerun with what failed before it: a live test that often needs one is a finding."""
    reruns = terminalreporter.stats.get("rerun", [])
    if reruns:
        terminalreporter.section(f"{len(reruns)} reruns")
    for report in reruns:
        crash = getattr(report.longrepr, "reprcrash", None)
        terminalreporter.write_line(f"{report.nodeid}: {crash.message.splitlines()[0] if crash else report.longrepr}")
