"""Tests of Ruby, which is only recognized: doctor, dump and the summary say that its functions are missing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import BUSY, pyprof, python
from tests.interpreters.runs import dump, record
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

PROGRAM = "def spin; n = 0; n += 1 while true; end; puts 1; STDOUT.flush; spin"


@pytest.fixture(scope="module")
def ruby() -> Iterator[int]:
    with subprocess.Popen([need("ruby"), "-e", PROGRAM], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def version() -> str:
    found = subprocess.run([need("ruby"), "-e", "print RUBY_VERSION"], capture_output=True, text=True, check=True)
    return found.stdout


def test_doctor_says_which_ruby_it_is_and_that_its_functions_are_missing(ruby: int, version: str) -> None:
    (line,) = [line for line in pyprof("doctor", str(ruby)).stdout.splitlines() if "it runs Ruby" in line]
    assert re.fullmatch(
        rf"  -   it runs Ruby {version} in /\S+: Ruby functions are missing, pyprof does not read them", line
    )


def test_dump_says_so_and_makes_no_frames_up(ruby: int, version: str) -> None:
    text = pyprof("dump", "-p", str(ruby)).stdout.splitlines()[1]
    assert text.startswith(f"it runs Ruby {version} in /")
    found = dump(ruby)
    ((language, number),) = [(entry["language"], entry["version"]) for entry in found["unread"]]
    assert (language, number) == ("Ruby", version)
    (thread,) = found["threads"]
    assert thread["interpreter"] is None
    assert {frame["kind"] for frame in thread["frames"]} <= {"native", "inline"}
    assert "rb_vm_exec" in [frame["function"] for frame in thread["frames"]]


@pytest.mark.parametrize("collector", ["auto", "ptrace"])
def test_summary_says_in_how_many_processes_functions_are_missing(ruby: int, collector: str, tmp_path: Path) -> None:
    summary = record(ruby, tmp_path / "out.collapsed", "--collector", collector)
    (missing,) = summary["functions_missing"]
    assert (missing["language"], missing["pids"]) == ("Ruby", [ruby])
    assert summary["warnings"][0] == {
        "reason": "functions_missing",
        "text": "Ruby functions are missing in 1 process: pyprof does not read them",
        "hint": "",
    }
    ends = summary["shown"]["ends"]
    assert ends["no_ruby"] > 0.5 * summary["shown"]["total"]
    assert ends["no_ruby"] <= missing["value"]


def test_terminal_says_so_first(ruby: int, tmp_path: Path) -> None:
    done = pyprof("record", "-p", str(ruby), "-d", "1", "-o", str(tmp_path / "a.html"))
    said = " ".join(done.stderr.partition("Ctrl-C to finish\n")[2].split())
    assert said.startswith("pyprof: Ruby functions are missing in 1 process: pyprof does not read them")
    assert "of the native stacks are whole; Ruby functions are not shown" in said


def test_nothing_is_said_of_ruby_where_none_runs() -> None:
    with python(BUSY) as process:
        assert "Ruby" not in pyprof("doctor", str(process.pid)).stdout
        assert json.loads(pyprof("dump", "-p", str(process.pid), "--json").stdout)["unread"] == []
