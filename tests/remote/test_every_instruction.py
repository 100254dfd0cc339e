"""One sample at each instruction of a whole ladder, up and down, through qemu-user's stub.

The truth needs no shadow: the function that the pc is in says how high on the ladder the program stands.
"""

from __future__ import annotations

import subprocess
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pyprof.collectors.gdb_remote import GdbRemoteCollector, RemoteOptions
from pyprof.diagnostics import Diagnostics
from pyprof.model.sample import SampleBatch
from pyprof.model.walk import StackEnd, Walk, lookup_pc
from pyprof.objfile.images import ImageStore
from pyprof.options import CollectOptions, UnwindOptions
from pyprof.unwind.unwinder import Unwinder
from tests.remote.programs import RECIPES, ladder, symbol
from tests.remote.runs import LADDER
from tests.remote.stubs import qemu_user, relay
from tests.support import need

MOST_S = 60.0

MATRIX = [
    ("a32", "exidx", 1.0),
    ("t32", "exidx", 1.0),
    ("a32_dwarf", "debug_frame", 1.0),
    ("t32_dwarf", "debug_frame", 1.0),
    ("a64", "eh_frame", 1.0),
    ("a64_pac", "eh_frame", 1.0),
    ("s390x", "eh_frame", 1.0),
]
"""Program, the only source of the program's own functions, least share of instructions whose stack is exact."""


def namer(program: Path) -> Callable[[int], str]:
    """pc -> name of the function around it, "" outside."""
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


def judge(batch: SampleBatch, walk: Walk, name: Callable[[int], str], found: dict[int, bool]) -> None:
    """found: pc -> is each stack there exact?"""
    for lane in range(len(batch)):
        frames = range(int(walk.start[lane]), int(walk.start[lane + 1]))
        stack = [name(lookup_pc(int(walk.pc[i]), bool(walk.exact[i]))) for i in frames]
        if stack[0] not in LADDER:
            continue
        truth = ["main", *LADDER[: LADDER.index(stack[0]) + 1]][::-1]
        exact = stack[: len(truth)] == truth and len(stack) <= len(truth) + 3
        pc = int(walk.pc[frames[0]])
        found[pc] = found.get(pc, True) and exact and walk.end[lane] == StackEnd.ROOT


def sweep(name: str, sources: str) -> dict[int, bool]:
    program, recipe = ladder(name), RECIPES[name]
    found: dict[int, bool] = {}
    naming = namer(program)
    diagnostics = Diagnostics()
    unwinder = Unwinder(ImageStore(diagnostics), UnwindOptions(tuple(sources.split(","))), diagnostics)
    with qemu_user(recipe.emulator, program, "3", "1") as address, relay(address) as stub:
        entry = symbol(program, "r_01")
        stub.run_to(entry, recipe.entry)
        remote = RemoteOptions(stub.address, str(program), step=1)
        with closing(GdbRemoteCollector(remote, CollectOptions(flush_s=0.05), diagnostics)) as collector:
            until, began = time.monotonic() + MOST_S, False
            for batch in collector.batches():
                walk = unwinder.walk(batch)
                judge(batch, walk, naming, found)
                pcs = batch.regs[:, collector.arch.pc].tolist()
                assert time.monotonic() < until
                if began and entry in pcs:
                    break
                began = True
    return found


@pytest.mark.parametrize(("name", "sources", "least"), MATRIX)
def test_stack_is_exact_at_each_instruction_of_the_ladder(name: str, sources: str, least: float) -> None:
    found = sweep(name, f"{sources},eh_frame,exidx,fp")
    assert len(found) > 250
    wrong = [f"{pc:#x}" for pc, exact in sorted(found.items()) if not exact]
    print(f"{name} {sources}: {len(found) - len(wrong)} of {len(found)}")
    assert len(wrong) <= (1 - least) * len(found), (len(found), wrong)
