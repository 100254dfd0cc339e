"""Tests of programs of other architectures in qemu-user: every stack equals the ladder and gdb's backtrace."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.remote.programs import RECIPES, ladder, symbol
from tests.remote.runs import LADDER, dump, names, on_the_ladder, record
from tests.remote.stubs import qemu_user, relay
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

ROOTS = {"qemu-arm": "arm-linux-gnueabihf", "qemu-aarch64": "aarch64-linux-gnu", "qemu-s390x": "s390x-linux-gnu"}

DUMPS = [
    ("a32", "exidx"),
    ("t32", "exidx"),
    ("a32_dwarf", "debug_frame,exidx"),
    ("t32_dwarf", "debug_frame,exidx"),
    ("a32_dynamic", "exidx"),
    ("a64", "eh_frame"),
    ("a64_pac", "eh_frame"),
    ("a64_dynamic", "eh_frame"),
    ("a64_bare", "code,eh_frame"),
    ("a64_pac_bare", "code,eh_frame"),
    ("s390x", "eh_frame"),
    ("s390x_dynamic", "eh_frame"),
]

GDB_KNOWS = {"a32_dwarf", "t32_dwarf", "a64", "s390x"}
"""Programs that gdb can unwind.

The others need .ARM.exidx for the innermost frame, or the pointer signature bits, which qemu 7.2 does not report.
"""


def gdb_pcs(address: str, program: Path) -> list[int]:
    """Return the program counters of gdb's backtrace in the same state, from leaf to root."""
    commands = ["set pagination off", f"target remote {address}", "bt -past-main on"]
    words = [word for command in commands for word in ("-ex", command)]
    done = subprocess.run(
        [need("gdb-multiarch"), "-nx", "-batch", *words, str(program)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    here = re.search(r"^(0x[0-9a-f]+) in r_top", done.stdout, re.MULTILINE)
    found = re.findall(r"^#\d+ +(?:(0x[0-9a-f]+) in )?\w+", done.stdout, re.MULTILINE)
    first = int(here[1], 16) if here else symbol(program, "r_top")
    return [int(pc, 16) if pc else first for pc in found]


@pytest.mark.parametrize(("name", "sources"), DUMPS)
def test_dump_at_the_top_equals_the_ladder(name: str, sources: str) -> None:
    program, recipe = ladder(name), RECIPES[name]
    root = f"/usr/{ROOTS[recipe.emulator]}"
    with qemu_user(recipe.emulator, program, "3") as address, relay(address) as stub:
        stub.run_to(symbol(program, "r_top"), recipe.entry)
        found = dump(stub.address, "--unwind", sources, "--sysroot", root, "--exe", str(program))
        (thread,) = found["threads"]
        assert thread["end"] == "root"
        assert names(thread)[0] == "_start"
        assert tuple(names(thread)[names(thread).index("main") + 1 :]) == LADDER
        assert {frame["trust"] for frame in thread["frames"]} <= {"context", *sources.split(",")}
        if name in GDB_KNOWS:
            theirs = gdb_pcs(stub.address, program)
            assert len(theirs) > len(LADDER)
            ours = [int(frame["pc"], 16) for frame in thread["frames"] if not frame["inlined"]]
            assert [pc & ~1 for pc in theirs] == ours[: len(theirs)]


@pytest.mark.parametrize(
    ("name", "sources"),
    [("t32", "exidx"), ("a64_pac", "eh_frame"), ("a64_pac_bare", "code,eh_frame"), ("s390x", "eh_frame")],
)
def test_samples_by_stepping_are_whole_and_on_the_ladder(name: str, sources: str, tmp_path: Path) -> None:
    program, recipe = ladder(name), RECIPES[name]
    with qemu_user(recipe.emulator, program, "100000") as address, relay(address) as stub:
        stub.run_to(symbol(program, "r_01"), recipe.entry)
        recorded = record(stub.address, tmp_path, "--step", "7", "--unwind", sources, "--exe", str(program), seconds=3)
    assert recorded.summary["samples"] > 5
    wrong = {stack: n for stack, n in recorded.stacks.items() if stack[0] != "_start" or not on_the_ladder(stack)}
    assert not wrong
    assert any("one sample each 7 instructions" in note["text"] for note in recorded.summary["notes"])


def test_program_that_ends_while_it_is_stepped_ends_the_recording(tmp_path: Path) -> None:
    program = ladder("a32")
    with qemu_user("qemu-arm", program, "0") as address, relay(address) as stub:
        stub.run_to(symbol(program, "main"), 4)
        recorded = record(stub.address, tmp_path, "--step", "50", "--exe", str(program), seconds=60)
    assert recorded.summary["samples"] > 1
    assert recorded.summary["duration_s"] < 60


def test_stub_that_cannot_be_interrupted_is_refused_before_anything_runs() -> None:
    with qemu_user("qemu-arm", ladder("a32"), "3") as address:
        done = warm.run("record", "--gdb", address, "-o", "-")
    assert done.returncode == 1
    assert "cannot be interrupted" in done.stderr
    assert "--step N" in done.stderr
    assert len(done.stderr.splitlines()) == 2
