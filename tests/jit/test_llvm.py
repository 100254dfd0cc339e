"""Tests of LLVM's JIT compilers and the GDB JIT interface: names, lines and stacks, against gdb."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pyprof.objfile.jitdump import JitdumpReader, Loaded
from tests.live.support.other_unwinders import gdb_stacks
from tests.live.support.recording import Recording, dump, record, running
from tests.roots import run_in
from tests.support import build, need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAMS = Path(__file__).parent / "programs"
KINDS = ("mcjit", "orc")


@pytest.fixture(scope="module")
def bitcode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("bitcode") / "spinner.bc"
    flags = ["-O1", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-emit-llvm", "-c"]
    return build(PROGRAMS / "spinner.c", output, *flags, compiler="clang")


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_process_has_the_stack_that_gdb_finds_with_lines(kind: str, bitcode: Path, tmp_path: Path) -> None:
    with running(need("lli"), f"-jit-kind={kind}", bitcode) as program:
        for _ in range(20):  # until the program no longer compiles
            os.kill(program.pid, signal.SIGCONT)
            time.sleep(0.1)
            os.kill(program.pid, signal.SIGSTOP)
            (thread,) = dump(program.pid)["threads"]
            if thread["frames"][0]["function"] == "leaf":
                break
        theirs = gdb_stacks(program.pid, tmp_path)[program.pid]
    frames = thread["frames"]
    assert thread["end"] == "root"
    assert [int(frame["pc"], 16) for frame in frames if not frame["inlined"]] == theirs
    made = [frame for frame in frames if frame["module"] == "[jit] gdb"]
    assert [frame["function"] for frame in made] == [
        "leaf", "inlined", *["ladder"] * 31, "outer", "main",
    ]  # fmt: skip
    assert {frame["file"] for frame in made} == {str(PROGRAMS / "spinner.c")}
    source = (PROGRAMS / "spinner.c").read_text().splitlines()
    lines = {frame["function"]: source[frame["line"] - 1] for frame in made}
    assert re.search(r"ladder\(n \+ 1, depth - 1\)|inlined\(n\)", lines["ladder"])
    assert "ladder(n, 30)" in lines["outer"]
    assert frames[2]["trust"] == "gdb_jit"


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_of_made_code_is_whole(kind: str, bitcode: Path, tmp_path: Path) -> None:
    with running(need("lli"), f"-jit-kind={kind}", bitcode) as program:
        recording = record(program.pid, tmp_path, until=lambda recording: recording.samples > 50)
    assert recording.samples > 50
    assert recording.whole == 1.0
    leaves = sum(n for stack, n in recording.stacks.items() if stack[-2:] == ("inlined", "leaf"))
    assert leaves > 0.9 * recording.samples
    assert {stack.count("ladder") for stack in recording.stacks if stack[-1] == "leaf"} == {31}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("loop")
    program = build(PROGRAMS / "gdb_loop.c", folder / "gdb_loop", "-O1", "-g")
    made = [build(PROGRAMS / f"made_{name}.S", folder / f"{name}.o", "-c") for name in ("even", "odd")]
    return program, made[0], made[1]


def test_object_files_that_take_turns_at_one_address_are_told_apart(
    objects: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Alternate object files with different frame sizes. With the other one's table no stack would be complete."""

    def samples_in(recording: Recording) -> dict[tuple[str, str], int]:
        return {
            (caller, made): sum(n for stack, n in recording.stacks.items() if stack[-2:] == (caller, made))
            for caller in ("call_even", "call_odd") for made in ("made_even", "made_odd")
        }  # fmt: skip

    def has_two_turns_of_each(recording: Recording) -> bool:
        times = samples_in(recording)
        return min(times["call_even", "made_even"], times["call_odd", "made_odd"]) > 150  # the most in a turn of 150 ms

    with running(objects[0], "150", *objects[1:]) as program:
        recording = record(program.pid, tmp_path, seconds=2.5, rate=999, until=has_two_turns_of_each)
    times = samples_in(recording)
    assert times["call_even", "made_odd"] == times["call_odd", "made_even"] == 0
    assert has_two_turns_of_each(recording)
    turns = [sum(n for stack, n in recording.stacks.items() if caller in stack) for caller in ("call_even", "call_odd")]
    assert min(turns) > 0.25 * recording.samples  # the callers read the clock for half of their time
    assert recording.whole > 0.8


def lines_of_dump(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Return (offset in the code, line) of each entry, by function, in the only jitdump below the folder."""
    (file,) = folder.rglob("jit-*.dump")
    found = [loaded for loaded in JitdumpReader().read(file.read_bytes()) if isinstance(loaded, Loaded)]
    return {loaded.name: [(avma - loaded.start, line) for avma, _, line in loaded.lines] for loaded in found}


def test_lines_of_llvms_jitdump_are_those_of_their_functions(bitcode: Path, tmp_path: Path) -> None:
    """Read the jitdump of MCJIT, which Julia used up to 1.9. Its entries include an ELF header before the code."""
    with running(need("lli"), "-jit-kind=mcjit", bitcode, env={**os.environ, "JITDUMPDIR": str(tmp_path)}):
        found = lines_of_dump(tmp_path)
    source = (PROGRAMS / "spinner.c").read_text().splitlines()
    begins = {name: next(n for n, line in enumerate(source) if f" {name}(" in line) + 1 for name in found}
    assert set(begins) == {"leaf", "ladder", "outer", "main"}
    for name, entries in found.items():
        begin = begins[name]
        end = source.index("}", begin) + 1
        assert entries[0][0] == 0
        assert begin <= entries[0][1] <= begin + 1
        assert len(entries) > 3
        others = [line for _, line in entries if line and not begin <= line <= end]
        assert others == ([18] if name == "ladder" else []), (name, others)  # line 18 is in inlined()


def test_code_of_llvms_jitlink_has_its_jitdumps_tables_and_lines(tmp_path: Path) -> None:
    """Read the jitdump of JITLink, which Julia uses from 1.10 on.

    It has all lines, then all functions, and one table for all.
    """
    flags = ["-O1", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fPIC", "-Dstatic=", "-c"]
    code = build(PROGRAMS / "spinner.c", tmp_path / "spinner.o", *flags, compiler="clang")
    command = [*run_in("sid"), "llvm-jitlink-22", "-perf-support", "-debugger-support=false", str(code)]
    with running(*command, env={**os.environ, "JITDUMPDIR": str(tmp_path)}) as program:
        recording = record(program.pid, tmp_path, seconds=0.5, until=lambda recording: recording.samples > 50)
        assert recording.whole == 1.0
        assert recording.summary["trust"]["jitdump"] > 30 * recording.samples
        leaves = [stack for stack in recording.stacks if stack[-1] == "leaf"]
        assert {stack[-34:] for stack in leaves} == {("main", "outer", *["ladder"] * 31, "leaf")}
        assert sum(recording.stacks[stack] for stack in leaves) > 0.9 * recording.samples
        found = lines_of_dump(tmp_path)
    assert {name: entries[0][1] for name, entries in found.items()} == {
        "leaf": 7,
        "ladder": 22,
        "outer": 29,
        "main": 34,
    }


def test_nothing_is_looked_for_in_a_process_without_made_code(tmp_path: Path) -> None:
    from pyprof.runtime_code import process_code

    source = tmp_path / "spin.c"
    source.write_text("int main(void) { for (volatile long n = 0;; n++); }")
    program = build(source, tmp_path / "spin", "-O1")
    looked = tmp_path / "looked"
    script = (
        "import sys; from pyprof.runtime_code import process_code\n"
        f"process_code.ProcessCode.__init__ = lambda *a: open({str(looked)!r}, 'w').close()\n"
        "from pyprof.__main__ import main; sys.exit(main())"
    )
    assert hasattr(process_code.ProcessCode, "__init__")
    process = subprocess.Popen([program], stdout=subprocess.DEVNULL)
    try:
        command = ["record", "-p", str(process.pid), "-d", "1", "-f", "collapsed", "-o", str(tmp_path / "out")]
        import sys

        done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, timeout=60, check=False)
    finally:
        process.kill()
        process.wait(timeout=30)
    assert done.returncode == 0, done.stderr
    assert not looked.exists()
