"""Configuration of all tests: marks, busy loops during a run, and one folder of builds for all processes of a run."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import support

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; programs would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

RERUNS_OF_LIVE_TESTS = 2
MAX_RERUN_LINE = 300
"""Largest number of characters of a line that describes a rerun."""
KINDS = {
    "unit": "needs nothing but Python: no compiler, no other tool, no rights, no target (the default)",
    "live": "looks at running programs, whose threads run when the machine lets them",
    "matrix": "the same test for each interpreter, toolchain or architecture that is installed",
    "smoke": "makes short recordings of real programs, with the rights of any user",
    "fuzz": "random, mutated or hostile input",
    "system": "needs tools of the system: compilers, debuggers, emulators, a browser, pip",
}
"""Marks of the kinds of tests. A file declares its kinds in `pytestmark`; a test without any is a unit test."""

# examples would miss Hypothesis's deadline on a busy machine
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("tests"), max_examples=20)  # the full profile runs 100
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--busy-loops", type=int, default=0, metavar="N", help="run N busy loops of normal priority next to the tests"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the busy loops once in each run, in the controller of xdist and not in its workers."""
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
    for kind, meaning in KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")
    support.only_units = config.option.markexpr == "unit"
    if support.only_units:
        settings.load_profile(config.getoption("--hypothesis-profile") or "quick")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each of a thousand commands compiles its imports
    if support.BUILDS not in os.environ:  # xdist workers inherit the controller's folder
        os.environ[support.BUILDS] = tempfile.mkdtemp(prefix="pyprof-builds-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(support.BUILDS), ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files without unit tests if only those run, and of files with nothing else if others run."""
    if not collection_path.match("test_*.py"):
        return None
    if support.only_units and has_own_kinds(collection_path):
        return True
    if config.option.markexpr == "not unit" and not names_kind(collection_path.read_text()):
        return True
    return None


def has_own_kinds(path: Path) -> bool:
    """Return True if the `pytestmark` of a test file names a kind, so that the file contains no unit tests."""
    statement = re.search(r"^pytestmark = (\[.*?^\]|.*?$)", path.read_text(), re.MULTILINE | re.DOTALL)
    return statement is not None and names_kind(statement[0])


def names_kind(text: str) -> bool:
    """Return True if a text contains a mark of a kind."""
    return any(f"pytest.mark.{kind}" in text for kind in KINDS)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes after their argument: gzip data contains the time, so the names would differ between processes."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    """Freeze all imported objects, so that later garbage collections skip them."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        _put_long_files_first(items)
    for item in items:
        kinds = {mark.name for mark in item.iter_markers()} & KINDS.keys()
        if not kinds:
            item.add_marker("unit")
        if "live" in kinds and getattr(item.config.option, "reruns", 0) is None:  # no option: -p no:rerunfailures
            item.add_marker(pytest.mark.flaky(reruns=RERUNS_OF_LIVE_TESTS))


def _put_long_files_first(items: list[pytest.Item]) -> None:
    """Put files of live and matrix tests first, files of unit tests last, and files of many tests before files of few.

    xdist hands out the files in this order, so that no process runs a long file at the end while the others have
    nothing to do: the only test of a file that starts servers may take a minute.
    """
    counts = Counter(item.path for item in items)
    ranks = {item.path: _rank(item) for item in sorted(items, key=_rank, reverse=True)}
    items.sort(key=lambda item: (ranks[item.path], -counts[item.path]))


def _rank(item: pytest.Item) -> int:
    """Return 0 for a live or matrix test, 2 for a unit test and 1 for others."""
    kinds = {mark.name for mark in item.iter_markers()} & KINDS.keys()
    return 0 if kinds & {"live", "matrix"} else 1 if kinds - {"unit"} else 2


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail a test that leaves signals blocked: later tests could neither time out nor end their programs."""
    if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        pytest.fail(f"{item.nodeid} left {len(blocked)} signals blocked", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """List each rerun in one line with the preceding failure, because a live test that often needs one is unreliable.

    The list is the last section, below the long messages of failures, so that the end of a log names all reruns.
    """
    yield
    reruns = terminalreporter.stats.get("rerun", [])
    if reruns:
        terminalreporter.section(f"{len(reruns)} reruns")
    for report in reruns:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = f"{crash.message if crash else report.longrepr}\n"
        terminalreporter.write_line(f"rerun {report.nodeid}: {message.splitlines()[0]}"[:MAX_RERUN_LINE])
