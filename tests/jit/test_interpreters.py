"""Tests of interpreters that write perf maps: their functions have names, and stacks are complete."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.support.recording import Recording, record, running
from tests.roots import run_in
from tests.support import build, need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAMS = Path(__file__).parent / "programs"


def of_functions(recording: Recording) -> dict[str, int]:
    def samples(function: str) -> int:
        pattern = re.compile(rf"(?:JS:.)?{function}(?: /|$)")
        return sum(n for stack, n in recording.stacks.items() if any(map(pattern.match, stack)))

    return {function: samples(function) for function in ("fib", "hot")}


def are_compiled(recording: Recording) -> bool:
    """Return True if most samples are in named functions.

    Node's compiler takes a while on a busy machine. Until then the functions are bytecode, whose addresses have no
    names.
    """
    found = of_functions(recording)
    return min(found.values()) > 0.1 * recording.samples and sum(found.values()) > 0.85 * recording.samples


@pytest.mark.parametrize("options", [(), ("--interpreted-frames-native-stack",)])
def test_functions_of_node_have_names(options: tuple[str, ...], tmp_path: Path) -> None:
    with running(need("node"), "--perf-basic-prof", *options, PROGRAMS / "work.js", cwd=tmp_path) as program:
        recording = record(program.pid, tmp_path, seconds=0.8, until=are_compiled)
    Path(f"/tmp/perf-{program.pid}.map").unlink(missing_ok=True)
    assert recording.whole > 0.99
    assert are_compiled(recording), of_functions(recording)
    assert "[jit] v8" in {module["path"] for module in recording.summary["modules"]}
    assert "v8_code_gone" not in {each["name"] for each in recording.summary["counters"]}


def test_code_that_qemu_translated_is_unwound_by_the_table_that_it_registers(tmp_path: Path) -> None:
    """Unwind through translated code, for which qemu registers one object file with a .debug_frame section.

    The code's caller has no frame pointer.
    """
    source = tmp_path / "spin.c"
    source.write_text(
        '#include <unistd.h>\nint main(void) { write(1, "ready\\n", 6); for (volatile long n = 0;; n++); }'
    )
    program = build(source, tmp_path / "spin", "-O1", "-static")
    with running(need("qemu-x86_64"), program) as process:
        recording = record(process.pid, tmp_path)
    inside = {stack: n for stack, n in recording.stacks.items() if "code_gen_buffer" in stack}
    assert sum(inside.values()) > 0.5 * recording.samples
    assert all({"_start", "main", "cpu_loop"} <= set(stack) for stack in inside)
    assert recording.summary["trust"]["gdb_jit"] >= sum(inside.values())


def other_python() -> list[str]:
    """Return the command of a CPython with -X perf: this one, or Debian 13's in a private root."""
    if sys.version_info >= (3, 12):
        return [sys.executable]
    return [*run_in("trixie"), "python3.13"]


@pytest.fixture
def python_with_perf(tmp_path: Path) -> Iterator[int]:
    script = tmp_path / "work.py"
    script.write_text((PROGRAMS / "work.py").read_text())
    with running(*other_python(), "-X", "perf", script) as program:
        yield program.pid
    Path(f"/tmp/perf-{program.pid}.map").unlink(missing_ok=True)


def test_functions_of_cpython_stand_between_the_frames_of_its_evaluator(python_with_perf: int, tmp_path: Path) -> None:
    recording = record(python_with_perf, tmp_path, "--native", "all", seconds=0.8)
    assert recording.whole > 0.99
    deep = 0
    for stack, samples in recording.stacks.items():
        python = [name.split(":")[2] for name in stack if name.startswith("py::")]
        if python[:3] == ["<module>", "outer", "middle"] or python == ["<module>", "outer"]:
            deep += samples
    assert deep > 0.8 * recording.samples
    assert recording.summary["trust"]["epilogue"] > recording.samples
