"""Tests of programs that lie about themselves: the recording is written, and the programs continue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from tests.cli.support import BUSY, PYPROF, has_samples, python, record_until
from tests.live.support.recording import running
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.fuzz, pytest.mark.system]

LIARS = Path(__file__).parent / "programs"
HANGS_S = 60
"""Timeout in seconds, which only a hang exceeds."""
MAX_BYTES = 64 << 20


@pytest.fixture
def python_3_11() -> str:
    found = [sys.executable] if sys.version_info[:2] == (3, 11) else []
    found += [str(path) for path in (Path("/usr/bin/python3.11"),) if path.exists()]
    if not found:
        missing("needs Python 3.11, whose structures the program knows")
    return found[0]


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[int]:
    program = build(PROGRAMS / "c_moves.c", tmp_path / "c_moves", "-O1")
    with running(program, program) as target:
        yield target.pid
        assert target.poll() is None


def recorded(pid: int, tmp_path: Path, *options: str, has: str = "") -> str:
    """Record the process until a stack contains a name, and return the collapsed stacks."""
    out = tmp_path / "a.collapsed"

    def is_enough(done: subprocess.CompletedProcess[str]) -> bool:
        return has_samples(done) and has in out.read_text(errors="replace")

    done = record_until(is_enough, "-p", str(pid), "-o", str(out), *options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert out.stat().st_size < MAX_BYTES
    return out.read_text(errors="replace")


@pytest.mark.parametrize("collector", ["auto", "ptrace"])
def test_interpreter_whose_frames_lie_is_recorded(collector: str, python_3_11: str, tmp_path: Path) -> None:
    with running(python_3_11, LIARS / "liar.py") as target:
        assert "liar.py" in recorded(target.pid, tmp_path, "--collector", collector, has="liar.py")
        assert target.poll() is None


def test_files_of_machine_code_that_lie_cost_themselves_only(tmp_path: Path) -> None:
    with running(sys.executable, LIARS / "jitdumps.py", tmp_path) as target:
        recorded(target.pid, tmp_path)
        assert target.poll() is None


@pytest.mark.parametrize("collector", ["auto", "ptrace"])
def test_program_that_moves_its_own_file_is_recorded(collector: str, moving: int, tmp_path: Path) -> None:
    stacks = recorded(moving, tmp_path, "--collector", collector, has="main")
    assert "main" in stacks
    assert "root:" not in stacks


def test_program_that_changes_places_with_another_never_has_its_names(tmp_path: Path) -> None:
    """Swap two programs that have equal code and headers and differ in function names and in the kernel's file
    identity.
    """
    program, lie = (
        build(PROGRAMS / "c_moves.c", tmp_path / name, "-O1", "-Wl,--build-id=none", f"-DSPIN={name}")
        for name in ("spin", "spam")
    )
    found: list[set[bytes]] = []
    with running(program, program, lie) as target:
        for _ in range(60):
            space = procfs.read_address_space(target.pid, space_id=1, generation=0)
            code = next(mapping for mapping in space.mappings if mapping.executable)
            image = ImageStore(Diagnostics()).image(space, code.start)
            if image is not None:
                found.append(set(image.file.named_symbols([b"spin", b"spam"])))
    assert {b"spin"} in found
    assert {b"spam"} not in found


def test_stops_that_a_filter_of_system_calls_refuses_are_named(tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        missing("needs x86-64, whose numbers the filter has")
    command, out = [sys.executable, str(LIARS / "without_ptrace.py"), *PYPROF], tmp_path / "a.collapsed"
    with python(BUSY) as target:
        for seconds in ("0.3", "2", "10"):  # until pyprof had a processor and tried to stop the thread
            done = subprocess.run(
                [*command, "record", "-p", str(target.pid), "-d", seconds, "--collector", "ptrace", "-o", str(out)],
                capture_output=True,
                text=True,
                timeout=HANGS_S,
                check=False,
            )
            if "got no processor" not in done.stderr:
                break
    assert "its threads may not be stopped" in done.stderr
