"""Tests of the unwinder on real processes against gdb, and of incomplete tables."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pyprof.collectors.base import Feedback
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import CollectOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder
from tests.support import PROGRAMS, build, need
from tests.unwind.made_stacks import BASE, STACK, HandImages, HandSource, MadeLane, batch_of, little_elf, reader_of
from tests.unwind.test_batch import assert_same

pytestmark = [pytest.mark.live, pytest.mark.system]


@dataclass
class Stack:
    """A thread's stack.

    Attributes:
        frames: (pc, Trust) of each frame.
        end: How the stack ends.
        space: The address space.
    """

    frames: list[tuple[int, Trust]]
    end: StackEnd
    space: AddressSpace


@contextmanager
def process(*command: str | Path, ready: str = "ready\n") -> Iterator[int]:
    """Run a process that prints "ready", and end it afterwards."""
    started = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        assert started.stdout.readline() == ready
        yield started.pid
    finally:
        started.kill()
        started.wait(timeout=30)
        started.stdout.close()


def batches(pid: int, count: int, rate: float = 100) -> Iterator[tuple[SampleBatch, PtraceCollector]]:
    collector = PtraceCollector(pid, CollectOptions(idle=True, rate_hz=rate, flush_s=0.0), Diagnostics())
    try:
        for number, batch in enumerate(collector.batches()):
            yield batch, collector
            if number >= count:
                collector.stop()
    finally:
        collector.close()


def stacks(pid: int, diagnostics: Diagnostics, options: UnwindOptions | None = None) -> dict[int, Stack]:
    """Return the last stack of each thread, and assert that both walkers agree on all stacks."""
    unwinder = Unwinder(ImageStore(diagnostics), options or UnwindOptions(), diagnostics)
    last = {}
    for batch, collector in batches(pid, 6):
        walk = unwinder.walk(batch)
        assert_same(walk, unwinder.walk_scalar(batch))
        collector.learn(Feedback(batch, walk.top, walk.missing, walk.lacks_register))
        for lane in np.flatnonzero(batch.kind != SampleKind.UNCHANGED).tolist():
            part = slice(int(walk.start[lane]), int(walk.start[lane + 1]))
            frames = list(zip(walk.pc[part].tolist(), map(Trust, walk.trust[part].tolist()), strict=True))
            space = batch.spaces[int(batch.space[lane])]
            last[int(batch.tid[lane])] = Stack(frames, StackEnd(walk.end[lane]), space)
    return last


GDB_SCRIPT = """
for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("thread", thread.ptid[1])
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("frame", frame.pc())
        frame = frame.older()
"""


def gdb_stacks(pid: int, folder: Path) -> dict[int, list[int]]:
    """Return gdb's program counters of each thread, without virtual frames (inlined functions and tail calls)."""
    script = folder / "stacks.py"
    script.write_text(GDB_SCRIPT)
    command = [need("gdb"), "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", str(pid)]
    past = ["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"]
    done = subprocess.run(
        [*command, *past, "-x", str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    found: dict[int, list[int]] = {}
    for line in done.stdout.splitlines():
        match line.split():
            case ["thread", tid]:
                found[int(tid)] = []
            case ["frame", pc]:
                found[list(found)[-1]].append(int(pc))
    assert found, done.stdout + done.stderr
    return found


PYTHON = """
import threading, time
for n in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
list(map(time.sleep, [60]))
"""
NODE = "console.log('ready'); setInterval(() => {}, 100000)"
PERL = "$| = 1; sub f { $_[0] ? f($_[0] - 1) : do { print qq(ready\\n); sleep 60 } } f(20)"


@pytest.mark.parametrize(
    ("tool", "arguments"), [(sys.executable, ("-c", PYTHON)), ("node", ("-e", NODE)), ("perl", ("-e", PERL))]
)
def test_stacks_of_sleeping_threads_are_those_of_gdb(tool: str, arguments: Sequence[str], tmp_path: Path) -> None:
    program = need(tool)
    need("gdb")
    with process(program, *arguments) as pid:
        time.sleep(0.3)  # lets every thread fall asleep
        diagnostics = Diagnostics()
        ours = stacks(pid, diagnostics)
        theirs = gdb_stacks(pid, tmp_path)
    assert {tid: [pc for pc, _ in stack.frames] for tid, stack in ours.items()} == theirs
    assert {stack.end for stack in ours.values()} == {StackEnd.ROOT}
    assert not [key for key in diagnostics.counts if "broken" in key]


def test_trampoline_without_a_table_is_known_by_its_code(tmp_path: Path) -> None:
    program = build(PROGRAMS / "sigreturn_bare.c", tmp_path / "sigreturn_bare", "-O2")
    with process(program) as pid:
        (stack,) = stacks(pid, Diagnostics()).values()
    assert stack.end is StackEnd.ROOT
    trusts = [trust for _, trust in stack.frames]
    interrupted = trusts.index(Trust.SIGRETURN)
    assert len(trusts) - interrupted >= 4  # syscall, raise_it, main, and the callers of main


def test_program_with_frame_pointers_and_no_table_is_whole_by_its_records(tmp_path: Path) -> None:
    flags = ("-O1", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    program = build(PROGRAMS / "sigreturn_bare.c", tmp_path / "records", *flags)
    with process(program) as pid:
        (stack,) = stacks(pid, Diagnostics(), UnwindOptions(sources=("eh_frame", "fp"))).values()
        (cut,) = stacks(pid, Diagnostics(), UnwindOptions(sources=("eh_frame",))).values()
    assert stack.end is StackEnd.ROOT
    assert {Trust.FP, Trust.SIGRETURN, Trust.EH_FRAME} <= {trust for _, trust in stack.frames}
    assert cut.end is StackEnd.NO_RULE
    assert cut.frames == stack.frames[: len(cut.frames)]


def test_table_in_the_separate_debug_file_is_used_where_the_program_has_none(tmp_path: Path) -> None:
    flags = ("-O2", "-g", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    program = build(PROGRAMS / "sigreturn_bare.c", tmp_path / "split", *flags)
    debug = tmp_path / "split.debug"
    for command in (
        [need("objcopy"), "--only-keep-debug", program, debug],
        ["objcopy", "--strip-debug", f"--add-gnu-debuglink={debug}", program],
    ):
        subprocess.run([str(word) for word in command], check=True, timeout=60, cwd=tmp_path)
    with process(program) as pid:
        (stack,) = stacks(pid, Diagnostics()).values()
    assert stack.end is StackEnd.ROOT
    assert Trust.DEBUG_FRAME in {trust for _, trust in stack.frames}


# The order of sources, with synthetic tables.

RSP = X86_64.sp
STEP = Rule(RSP, 16, RegRule(RegKind.AT_CFA, -8))
OTHER_STEP = Rule(RSP, 32, RegRule(RegKind.AT_CFA, -8))
ROOT = Rule(RSP, 8, UNDEFINED)


def rows(start: int, *rules: Rule, end: int = 0x40, repeat: int = 0) -> FunctionRows:
    return FunctionRows(start, start + end, tuple(start + 8 * n for n in range(len(rules))), rules, repeat)


class BrokenSource(HandSource):
    def function_at(self, svma: int) -> FunctionRows | None:
        raise FormatError(".eh_frame", 0x123, "made to be broken")


def walk_made(words: dict[int, int], pc: int, **sources: HandSource) -> tuple[Walk, Diagnostics]:
    diagnostics = Diagnostics()
    unwinder = Unwinder(
        HandImages(little_elf(X86_64, bytes(0x10000))),
        UnwindOptions(sources=tuple(sources)),
        diagnostics,
        {name: reader_of(source) for name, source in sources.items()},
    )
    lane = MadeLane({RSP: STACK + 0x1000, X86_64.pc: BASE + pc}, words, [], STACK + 0xF80, 0x400)
    batch = batch_of(X86_64, [lane] * 30)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    return walk, diagnostics


def test_source_that_does_not_cover_a_pc_passes_to_the_next() -> None:
    first = HandSource([rows(0x100, STEP)], "first", Trust.SFRAME)
    second = HandSource([rows(0x100, OTHER_STEP), rows(0x200, ROOT)], "second", Trust.DEBUG_FRAME)
    words = {STACK + 0x1008: BASE + 0x210, STACK + 0x1018: BASE + 0x220}
    walk, _ = walk_made(words, 0x104, first=first, second=second)
    assert (walk.pc[:2] - BASE).tolist() == [0x104, 0x210]
    assert walk.trust[:2].tolist() == [Trust.CONTEXT, Trust.SFRAME]
    walk, _ = walk_made(words, 0x104, second=second, first=first)
    assert (walk.pc[:2] - BASE).tolist() == [0x104, 0x220]
    assert walk.trust[:2].tolist() == [Trust.CONTEXT, Trust.DEBUG_FRAME]


def test_broken_place_costs_one_source_and_is_counted_with_its_offset() -> None:
    good = HandSource([rows(0x100, STEP), rows(0x200, ROOT)], "good")
    walk, diagnostics = walk_made({STACK + 0x1008: BASE + 0x210}, 0x104, bad=BrokenSource([], "bad"), good=good)
    assert set(walk.end.tolist()) == {StackEnd.ROOT}
    assert diagnostics.counts["unwind_entry_broken:bad"] == 2
    assert any(".eh_frame+0x123" in problem.text for problem in diagnostics.problems["made"])


def test_repeating_table_is_looked_up_inside_its_block() -> None:
    plt = rows(0x100, STEP, OTHER_STEP, end=0x40, repeat=0x10)
    source = HandSource([plt, rows(0x200, ROOT)])
    words = {STACK + 0x1008: BASE + 0x210, STACK + 0x1018: BASE + 0x220}
    for pc, caller in ((0x100, 0x210), (0x107, 0x210), (0x108, 0x220), (0x12F, 0x220), (0x130, 0x210), (0x13F, 0x220)):
        walk, _ = walk_made(words, pc, eh_frame=source)
        assert (walk.pc[:2] - BASE).tolist() == [pc, caller], hex(pc)


def test_return_address_behind_a_functions_end_belongs_to_that_function() -> None:
    source = HandSource([rows(0x100, STEP), rows(0x140, OTHER_STEP), rows(0x200, ROOT)])
    words = {STACK + 0x1008: BASE + 0x140, STACK + 0x1018: BASE + 0x210}
    walk, _ = walk_made(words, 0x104, eh_frame=source)
    assert (walk.pc[:3] - BASE).tolist() == [0x104, 0x140, 0x210]
    exact, _ = walk_made({STACK + 0x1018: BASE + 0x210}, 0x140, eh_frame=source)
    assert (exact.pc[:2] - BASE).tolist() == [0x140, 0x210]


def test_rows_that_claim_all_addresses_cover_their_module_only() -> None:
    source = HandSource([FunctionRows(-(1 << 70), 1 << 70, (-(1 << 70),), (OTHER_STEP,))])
    walk, _ = walk_made({STACK + 0x1018: 0x55550000}, 0x104, eh_frame=source)
    assert walk.pc[:2].tolist() == [BASE + 0x104, 0x55550000]
    assert set(walk.end.tolist()) == {StackEnd.NO_RULE}


def test_overlapping_functions_of_a_broken_table_are_walked_alike() -> None:
    source = HandSource([rows(0x120, OTHER_STEP, end=0x10), rows(0x100, STEP, end=0x100), rows(0x200, ROOT)])
    words = {STACK + 0x1008: BASE + 0x128, STACK + 0x1018: BASE + 0x150, STACK + 0x1028: BASE + 0x210}
    for pc in (0x104, 0x124, 0x160):
        walk_made(words, pc, eh_frame=source)
