"""Tests of `%load_ext pyprof` and `%%pyprof` in an IPython shell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython", reason="IPython is a development dependency")

pytestmark = [pytest.mark.live, pytest.mark.system]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "library.md"
SESSION = """
import json, os, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
shell.run_line_magic("colors", "nocolor")
shell.run_cell("%load_ext pyprof")
for line in sys.stdin:
    found = []
    for cell in json.loads(line):
        with capture_output() as shown:
            result = shell.run_cell(cell)
        profile = shell.user_ns.pop("_pyprof", None)
        found.append({
            "text": shown.stdout + shown.stderr,
            "pages": sum("<iframe" in output.data.get("text/html", "") for output in shown.outputs),
            "functions": [] if profile is None else [[cost.name, cost.total / profile.total] for cost in
                                                     profile.top(1000, by="total")],
            "outermost": [] if profile is None else [profile.path(leaf)[0].title for leaf in profile.stack.tolist()],
            "rate": 0 if profile is None else round(1e9 / profile.period_ns),
            "types": [] if profile is None else [type.type for type in profile.value_types],
            "pids": [] if profile is None else sorted({thread.pid == os.getpid() for thread in profile.threads}),
            "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(),
        })
    print(json.dumps(found), flush=True)
"""
WORK = """
import time
def crunch(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))
"""


Shown = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    """Return a function that runs cells in one session, and returns what each cell displays and its profile."""
    command = [sys.executable, "-W", "ignore", "-c", SESSION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        cells_to, found_from = session.stdin, session.stdout
        assert cells_to
        assert found_from

        def run(*cells: str) -> list[dict[str, Any]]:
            print(json.dumps(cells), file=cells_to, flush=True)
            line = found_from.readline()
            assert line, session.wait(60)
            found: list[dict[str, Any]] = json.loads(line)
            assert found[-1]["children"] == []
            return found

        run(WORK)
        yield run
        cells_to.close()


def test_cell_is_recorded_and_its_page_is_shown(shown: Shown) -> None:
    cell, after = shown("%%pyprof -r 199\nkept = 7 * 6\ncrunch(1)\nkept", "print(kept)")
    assert cell["pages"] == 1, cell["text"]
    assert dict(cell["functions"])["crunch"] > 0.5
    assert cell["outermost"].count("<module>") > len(cell["outermost"]) / 2, "not what runs the cell"
    assert cell["rate"] == 199
    assert cell["pids"] == [True]
    assert "42" in cell["text"]
    assert after["text"] == "42\n"
    assert after["pages"] == 0


def test_error_of_a_cell_is_shown_and_so_is_its_page(shown: Shown) -> None:
    (cell,) = shown("%%pyprof\ncrunch(0.5)\n{}['absent']")
    assert cell["text"].count("KeyError: 'absent'") == 1
    assert cell["pages"] == 1, cell["text"]
    assert "crunch" in dict(cell["functions"])


def test_cells_of_the_library_page_run_and_modes_are_those_of_record(shown: Shown) -> None:
    blocks = re.findall(r"^```\n(%.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [block.split()[0] for block in blocks] == ["%load_ext", "%%pyprof"]
    _, loaded, cell, after = shown("def compute(): return time.sleep(0.6)", *blocks, "print(answer)")
    assert "already loaded" in loaded["text"]
    assert cell["types"][-1] == "wall"
    assert cell["rate"] == 499
    assert any("sleep" in name for name, _ in cell["functions"])
    assert after["text"] == "None\n"


def test_wrong_options_and_help_run_nothing(shown: Shown) -> None:
    wrong, manual, after = shown("%%pyprof --mode both\nran = 1", "%pyprof -h", "print('ran' in globals())")
    assert "--mode" in wrong["text"]
    assert "UsageError" in wrong["text"]
    assert "--rate HZ" in manual["text"]
    assert after["text"] == "False\n"


def test_what_cannot_be_recorded_is_said_and_nothing_runs(shown: Shown) -> None:
    cell, after = shown("%%pyprof -k --collector ptrace\nran = 1", "print('ran' in globals())")
    assert "kernel" in cell["text"]
    assert cell["pages"] == 0
    assert after["text"] == "False\n"


def test_what_a_cell_leaves_behind_does_not_keep_it_recorded(shown: Shown) -> None:
    lasting = "import os\npid = os.fork()\nif not pid:\n    time.sleep(100)\n    os._exit(0)\ncrunch(0.5)"
    end = "import os, signal\nos.kill(pid, signal.SIGKILL)\nos.waitpid(pid, 0)[1]"
    cell, after = shown(f"%%pyprof\n{lasting}", end)
    assert cell["pages"] == 1, cell["text"]
    assert dict(cell["functions"])["crunch"] > 0.5
    assert "9" in after["text"]


def test_recording_that_ends_before_its_cell_is_shown(shown: Shown) -> None:
    (cell,) = shown("%%pyprof -d 0.5\ncrunch(1.5)")
    assert cell["pages"] == 1, cell["text"]
    assert "crunch" in dict(cell["functions"])
