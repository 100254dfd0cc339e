"""Tests of a recursion that is deeper than the copy of a stop: reassembled stacks equal those of their stop.

The thread may continue while the rest of its stack is read. The program is synthetic: its stack is memory of the test
process, which is read like that of a target.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.collectors.ptrace import deep_stack
from pyprof.collectors.ptrace.deep_stack import DeepStack
from pyprof.collectors.ptrace.sampled_thread import StackShape
from pyprof.collectors.ptrace.stack_copy import StackCopy
from pyprof.collectors.targets.address_spaces import MapsEvidence
from pyprof.collectors.targets.mapping_changes import StackMapping
from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackBeyondCopy
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.made_stacks import BASE, FUNCTION, SPAN, HandImages, HandSource, little_elf, reader_of

pytestmark = [pytest.mark.live, pytest.mark.system]

FRAME = 48
DEPTH = 8000
COPY = 128 << 10
"""Size of a stop's copy in bytes. The stack has 375 KiB."""

NAMES = ("start", "run", "left", "right", "down", "other", "at_left", "at_right")
AT = {name: BASE + FUNCTION * (place + 1) + 16 for place, name in enumerate(NAMES)}
FROM_RIGHT = AT["run"] + 16
"""Return address of the call of right() in run()."""
NAME_OF = {**{pc: name for name, pc in AT.items()}, FROM_RIGHT: "run"}


class Program:
    """A program that calls start, run, left or right, and down() recursively; at full depth at_left or at_right.

    Attributes:
        other_at: Index of the frame of down() that is one of other() instead.
    """

    def __init__(self, beyond: int) -> None:
        """Allocate the stack.

        Args:
            beyond: Number of bytes between the outermost frame and the end of the mapping.
        """
        size = 1 << 20
        self._memory = mmap.mmap(-1, size + beyond)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.end = self.start + size + beyond
        self._words = np.frombuffer(self._memory, np.uint64)
        self._top = self.start + size
        self.side, self.depth, self.other_at = "left", 0, -1
        self._write(0, AT["start"])
        self.enter("left", 0)

    def _write(self, frame: int, value: int) -> None:
        """Write the return address into a frame, counted from the outermost one."""
        self._words[(self._top - FRAME * (frame + 1) - 8 - self.start) >> 3] = value

    def enter(self, side: str, depth: int, other_at: int = -1) -> None:
        """Return from all calls, and call to this depth."""
        self.side, self.depth, self.other_at = side, depth, other_at
        self._write(1, AT["run"] if side == "left" else FROM_RIGHT)
        self._write(2, AT[side])
        for frame in range(depth):
            self._write(3 + frame, AT["other" if frame == other_at else "down"])

    def move(self, chance: random.Random) -> None:
        deep = chance.random() < 0.5
        self.enter(chance.choice(("left", "right")), DEPTH if deep else chance.randrange(DEPTH))

    @property
    def frames(self) -> list[str]:
        """Return the function names from leaf to root."""
        inner = [f"at_{self.side}"] if self.depth == DEPTH else []
        down = ["other" if frame == self.other_at else "down" for frame in range(self.depth)]
        return [*inner, *reversed(down), self.side, "run", "start"]

    @property
    def registers(self) -> dict[int, int]:
        frames = self.frames
        return {X86_64.pc: AT[frames[0]], X86_64.sp: self._top - FRAME * len(frames)}


class Calls(PtraceCalls):
    """Ptrace calls in which the program continues with a given probability while its memory is read."""

    def __init__(self, program: Program, chance: random.Random) -> None:
        super().__init__()
        self.goes_on = 0.0
        self._program, self._chance = program, chance

    def read_memory(self, tid: int, avma: int, size: int, into: int) -> int:
        if self._chance.random() < self.goes_on:
            self._program.move(self._chance)
        return super().read_memory(tid, avma, size, into)


class Recording:
    """A sequence of stops, walks and feedback."""

    def __init__(self, program: Program, chance: random.Random, goes_on: float = 0.0) -> None:
        self._program, self._goes_on = program, goes_on
        self._calls = Calls(program, chance)
        self._builder = BatchBuilder((X86_64,), ArenaMemory(COPY), 1)
        self._copy = StackCopy(self._calls, self._builder, Diagnostics(), COPY)
        stack = StackMapping(program.start, program.end)
        mappings = (
            Mapping(BASE, BASE + SPAN, "r-xp", 0, "8:1", 7, "/made"),
            Mapping(stack.start, stack.end, "rw-p", 0, "0:0", 0, ""),
        )
        space = AddressSpace(1, 1, 0, mappings, lambda avma, size: b"", "")
        self._spaces: Any = SimpleNamespace(find_region=lambda avma: stack if avma in stack else None, current=space)
        pid = os.getpid()
        self.thread: Any = SimpleNamespace(
            pid=pid, tid=pid, started=0, arch=X86_64, reader=None, shape=StackShape(COPY), deep=DeepStack()
        )
        self._unwinder = Unwinder(
            HandImages(_file()), UnwindOptions(), Diagnostics(), {"eh_frame": reader_of(_rules())}
        )

    def stop(self) -> None:
        registers = self._program.registers
        self._calls.goes_on = 0.0
        self._copy.clear()
        self._copy.copy_stack(self.thread, self._spaces, registers[X86_64.sp])
        self._calls.goes_on = self._goes_on
        evidence = MapsEvidence()
        lane = self._copy.add_lane(SampleKind.STOPPED, self.thread, self._spaces, 1, len(self._builder) + 1, evidence)
        self._builder.set_registers(lane, [registers.get(column, 0) for column in range(len(X86_64.registers))])

    def walk(self) -> list[list[str] | None]:
        """Return the frames of each stop since the last walk, or None for a truncated stack."""
        (batch,) = self._builder.take_batches()
        walk = self._unwinder.walk(batch)
        self._learn(batch, walk)
        walk = walk.unshare_frames()
        return [
            [NAME_OF[pc] for pc in walk.pc[walk.start[lane] : walk.start[lane + 1]].tolist()]
            if walk.end[lane] == StackEnd.ROOT
            else None
            for lane in range(len(walk))
        ]

    def _learn(self, batch: SampleBatch, walk: Walk) -> None:
        for lane in range(len(walk)):
            base, missing = int(batch.stack.base[lane]), int(walk.missing[lane])
            whole = walk.end[lane] == StackEnd.ROOT
            beyond = batch.stack.beyond.get(lane)
            if beyond is not None:
                self.thread.deep.learn(beyond, whole, missing, COPY)
            if beyond is None or whole:
                self.thread.shape.learn(base, int(walk.top[lane]) if whole else 0, missing, None)


def _rules() -> HandSource:
    rows = []
    for name, pc in AT.items():
        at = pc - 16 - BASE
        caller = UNDEFINED if name == "start" else RegRule(RegKind.AT_CFA, -8)
        rows.append(FunctionRows(at, at + FUNCTION, (at,), (Rule(X86_64.sp, FRAME, caller),)))
    return HandSource(rows)


def _file() -> Any:
    code = bytearray(SPAN)
    code[11:SPAN:16] = b"\xe8" * len(code[11:SPAN:16])  # a call instruction before each return address
    return little_elf(X86_64, bytes(code))


@pytest.mark.parametrize("beyond", [2304, 16 << 10, 60 << 10])
def test_whole_stacks_are_those_of_their_stop(monkeypatch: pytest.MonkeyPatch, beyond: int) -> None:
    monkeypatch.setattr(deep_stack, "_SLICE", 32 << 10)
    found: Counter[str] = Counter()
    for seed in range(8):
        chance = random.Random(seed)
        program = Program(beyond)
        recording = Recording(program, chance, goes_on=0.2)
        for _ in range(25):
            truth = []
            for _ in range(chance.randrange(1, 4)):
                if chance.random() < 0.8:
                    program.move(chance)
                truth.append(program.frames)
                recording.stop()
            for frames, true in zip(recording.walk(), truth, strict=True):
                assert frames is None or frames == true
                if frames is not None and len(true) * FRAME > 2 * COPY:
                    found[true[-3]] += 1
    assert min(found["left"], found["right"]) > 10


def test_stop_copies_the_part_of_a_known_stack_that_changes_and_not_all_that_it_may() -> None:
    most, length = 1 << 20, 10 << 20
    stack = np.zeros(length, np.uint8)
    base = stack.ctypes.data
    deep = DeepStack()

    def read(inner: int) -> int:
        """Read the rest after a stop `inner` bytes deeper.

        Return the number of bytes that the next stop copies and checks.
        """
        deep.read_beyond(PtraceCalls(), os.getpid(), base + inner, stack.data[inner:most], length - inner, 8)
        size = deep.choose_copy(base, most)
        return size + sum(size for _, size in deep.choose_ranges(base + size, base + length))

    assert deep.choose_copy(base, most) == most
    assert 64 << 10 <= read(0) < 300 << 10
    assert deep.choose_copy(base - (8 << 10), most) == max(64 << 10, (8 << 10) + (16 << 10))
    assert deep.outer is not None
    beyond = StackBeyondCopy(length, deep.outer)
    deep.learn(beyond, reached_root=False, missing=0, max_bytes=most)
    assert deep.choose_copy(base, most) == most, "the rest is read anew"
    assert 128 << 10 <= read(0) < 400 << 10
    assert read(200 << 10) > 216 << 10
    assert deep.choose_copy(base, most) == 216 << 10, "up to what is known, and a part of that"


def test_small_copy_is_enough_while_walks_go_on_where_the_stack_began() -> None:
    most, base, beyond = 1 << 20, 1 << 40, StackBeyondCopy(2 << 20)
    deep = DeepStack()
    assert not deep.is_joined(base, most)
    for needed, size in ((3_000, 64 << 10), (50_000, 100_000), (20, 100_000), (most, most)):
        deep.learn(beyond, reached_root=True, missing=0, max_bytes=most, needed=needed)
        assert deep.choose_copy(base, most) == size
        assert deep.is_joined(base, size), "nothing else is read"
    deep.learn(beyond, reached_root=False, missing=base + (100 << 10), max_bytes=most)
    assert deep.choose_copy(base, most) == most
    assert not deep.is_joined(base, most)


def test_caller_far_from_the_end_of_the_stack_is_checked_from_the_second_stop() -> None:
    program = Program(60 << 10)
    recording = Recording(program, random.Random(1))
    program.enter("left", DEPTH)
    whole = []
    for _ in range(4):
        recording.stop()
        whole += [frames == program.frames for frames in recording.walk()]
    assert whole == [False, True, True, True]


def test_frame_of_another_function_within_a_recursion_is_checked() -> None:
    program = Program(2304)
    recording = Recording(program, random.Random(1))
    program.enter("left", DEPTH, other_at=DEPTH // 3)
    for _ in range(8):
        recording.stop()
        (frames,) = recording.walk()
    assert frames == program.frames
    program.enter("left", DEPTH)
    recording.stop()
    (frames,) = recording.walk()
    assert frames is None
