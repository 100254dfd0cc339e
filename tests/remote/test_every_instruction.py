"""Tests with a sample at each instruction of a whole ladder, up and down, through qemu-user's stub.

The function that contains the pc determines the expected stack.
"""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import StackEnd, Walk, lookup_pc
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import CollectOptions, RemoteOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.unwinder import Unwinder
from tests.remote.programs import RECIPES, ladder, symbol
from tests.remote.runs import LADDER
from tests.remote.stubs import qemu_user, relay
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

MATRIX = {
    "a32": {"exidx": 1.0},
    "t32": {"exidx": 1.0},
    "a32_dwarf": {"debug_frame": 1.0, "debug_frame,exidx": 1.0},
    "t32_dwarf": {"debug_frame": 1.0, "debug_frame,exidx": 1.0},
    "a64_all": {"eh_frame": 1.0, "debug_frame": 1.0, "sframe": 1.0, "sframe,eh_frame,debug_frame,fp": 1.0},
    "a64_pac_all": {"eh_frame": 1.0, "debug_frame": 1.0, "sframe": 1.0, "sframe,eh_frame,debug_frame,fp": 1.0},
    "a64_fp": {"fp": 1.0},
    "a64_pac_fp": {"fp": 1.0},
    "s390x_all": {"eh_frame": 1.0, "debug_frame": 1.0, "eh_frame,debug_frame,fp": 1.0},
    "s390x_sframe": {"sframe": 1.0, "sframe,eh_frame,fp": 1.0},
    "s390x_fp": {"fp": 0.88},  # wrong between creating and linking a frame, see docs/remote.md
    "riscv64_all": {"eh_frame": 1.0, "debug_frame": 1.0, "eh_frame,debug_frame,fp": 1.0},
    "riscv64_wide": {"eh_frame": 1.0},
    "riscv64_fp": {"fp": 1.0},
    "ppc64le_all": {"eh_frame": 1.0, "debug_frame": 1.0, "fp": 0.88, "eh_frame,debug_frame,fp": 1.0},
}
"""Minimum share of instructions with a correct stack, by program and unwind sources."""

Found = dict[int, bool]
"""Whether each stack at a pc is correct."""


def namer(program: Path) -> Callable[[int], str]:
    """Return a function that maps a pc to the name of its function, or "" outside of functions."""
    text = subprocess.run([need("nm"), "-S", str(program)], capture_output=True, text=True, timeout=60, check=True)
    rows = sorted(
        (int(parts[0], 16) & ~1, int(parts[1], 16), parts[3])
        for line in text.stdout.splitlines()
        if len(parts := line.split()) == 4 and parts[2] in "tT"
    )
    starts = [row[0] for row in rows]

    def name(pc: int) -> str:
        at = bisect_right(starts, pc) - 1
        return rows[at][2] if at >= 0 and pc < rows[at][0] + rows[at][1] else ""

    return name


def judge(batch: SampleBatch, walk: Walk, name: Callable[[int], str], rooted: bool, found: Found) -> None:
    """Judge the stacks of a batch.

    Args:
        batch: The samples.
        walk: Their walk.
        name: Function that maps a pc to a function name.
        rooted: Whether the stack must reach the root.
        found: Results by pc, which are updated.
    """
    for lane in range(len(batch)):
        frames = range(int(walk.start[lane]), int(walk.start[lane + 1]))
        stack = [name(lookup_pc(int(walk.pc[i]), bool(walk.exact[i]))) for i in frames]
        if stack[0] not in LADDER:
            continue
        truth = ["main", *LADDER[: LADDER.index(stack[0]) + 1]][::-1]
        exact = stack[: len(truth)] == truth and len(stack) <= len(truth) + 3
        pc = int(walk.pc[frames[0]])
        found[pc] = found.get(pc, True) and exact and (not rooted or walk.end[lane] == StackEnd.ROOT)


def sweep(name: str, choices: Iterable[str]) -> dict[str, Found]:
    """Step up and down the whole ladder, and unwind each sample with each choice of sources."""
    program, recipe = ladder(name), RECIPES[name]
    naming = namer(program)
    diagnostics = Diagnostics()
    images = ImageStore(diagnostics)
    unwinders = {
        sources: Unwinder(images, UnwindOptions(tuple(sources.split(","))), diagnostics) for sources in choices
    }
    found: dict[str, Found] = {sources: {} for sources in unwinders}
    with qemu_user(recipe.emulator, program, "3", "1") as address, relay(address) as stub:
        entry = symbol(program, "r_01") + recipe.skip
        stub.run_to(entry, recipe.entry)
        remote = RemoteOptions(stub.address, str(program), step=1)
        with closing(GdbRemoteCollector(remote, CollectOptions(flush_s=0.05), diagnostics)) as collector:
            began = False
            for batch in collector.batches():
                for sources, unwinder in unwinders.items():
                    rooted = not {"exidx", "eh_frame"}.isdisjoint(sources.split(","))
                    judge(batch, unwinder.walk(batch), naming, rooted, found[sources])
                pcs = batch.regs[:, collector.arch.pc].tolist()
                if began and entry in pcs:
                    break
                began = True
    return found


@pytest.mark.parametrize("name", MATRIX)
def test_stack_is_exact_at_each_instruction_of_the_ladder(name: str) -> None:
    missed = {}
    for sources, found in sweep(name, MATRIX[name]).items():
        assert len(found) > 250
        wrong = [f"{pc:#x}" for pc, exact in sorted(found.items()) if not exact]
        print(f"{name} {sources}: {len(found) - len(wrong)} of {len(found)}")
        if len(wrong) > (1 - MATRIX[name][sources]) * len(found):
            missed[sources] = (len(found), wrong)
    assert not missed
