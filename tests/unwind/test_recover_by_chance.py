"""Tests of frame pointer recovery on random programs: recovered stacks are correct or truncated.

A program runs on a synthetic stack until a function sleeps. Its functions call each other directly, through pointers
and through jumping functions, also recursively. Some change sp by amounts that are not in their code, and returned
calls leave stale records behind.
"""

from __future__ import annotations

import random
import struct
from collections import Counter

import pytest

from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import StackEnd
from tests.unwind.made_stacks import BASE
from tests.unwind.made_world import FP_RULE, LEAF, LEAF_RULE, ROOT, ROOT_RULE, SP, World

TOP = SP + 0x3000
FIRST, FIRST_JUMP, APART = 0x8000, 0xC000, 0x400
SAVES = {b"": 0, b"\x53": 8, b"\x41\x54\x53": 16}
MAX_DEEP = 12

Function = tuple[int, int, bool]
"""(svma, distance from sp to the frame pointer in bytes, whether sp changes beyond that) of a function."""


class Asleep(Exception):
    pass


class Program:
    """A random program.

    Attributes:
        stack: Words of the stack by address.
        callers: Return addresses from root to leaf.
        sp: Stack pointer of the sleeping LEAF.
    """

    def __init__(self, seed: int, tables: bool) -> None:
        self.chance = random.Random(seed)
        self.world = World(functions={ROOT: ROOT_RULE, LEAF: LEAF_RULE})
        self.functions = [self._function(FIRST + APART * n, tables) for n in range(self.chance.randrange(3, 9))]
        self.jumps = [self._jump(FIRST_JUMP + APART * n, tables) for n in range(2)]
        self.calls = {at: [self._call(at + 0x40 + 16 * n) for n in range(6)] for at, _, _ in self.functions}
        self.calls[ROOT] = [self._call(ROOT + 0x40 + 16 * n) for n in range(6)]
        self.stack: dict[int, int] = {}
        self.callers: list[int] = []
        self.sp = self.fp = 0
        self.left = self.chance.randrange(2, 60)

    def _function(self, at: int, tables: bool) -> Function:
        saves = self.chance.choice(list(SAVES))
        room = 16 * self.chance.randrange(1, 12) + (8 if SAVES[saves] % 16 else 0)
        moves = self.chance.random() < 0.3
        code = b"\x55\x48\x89\xe5" + saves + b"\x48\x81\xec" + struct.pack("<i", room) + b"\x48\x29\xc4" * moves
        self.world.code[at : at + len(code)] = code
        if tables:
            self.world.functions[at] = FP_RULE
        return at, room + SAVES[saves], moves

    def _jump(self, at: int, tables: bool) -> tuple[int, Function]:
        to = self.chance.choice(self.functions)
        self.world.code[at : at + 5] = b"\xe9" + struct.pack("<i", to[0] - at - 5)
        if tables:
            self.world.functions[at] = LEAF_RULE
        return at, to

    def _call(self, at: int) -> tuple[int, Function | None]:
        """Write a call, and return (return address, called function or None for a call through a pointer)."""
        kind = self.chance.random()
        if kind < 0.4:
            return self.world.call(at), None
        through, to = self.chance.choice(self.jumps)
        to = to if kind < 0.5 else self.chance.choice(self.functions)
        return self.world.call(at, through if kind < 0.5 else to[0]), to

    def run(self) -> None:
        try:
            while True:
                self._body(ROOT, TOP, 0)
        except Asleep:
            return

    def _body(self, at: int, sp: int, depth: int) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            self.left -= 1
            asleep = self.left <= 0 and depth > 0
            if depth > MAX_DEEP and not asleep:
                return
            ra, to = (self.world.call(at + 0xC0, LEAF), None) if asleep else self.chance.choice(self.calls[at])
            self.sp = sp - 8
            self.stack[self.sp] = ra
            self.callers.append(ra)
            if asleep:
                raise Asleep
            self._enter(to or self.chance.choice(self.functions), sp - 8, depth + 1)
            self.callers.pop()

    def _enter(self, function: Function, sp: int, depth: int) -> None:
        at, room, moves = function
        before, self.fp = self.fp, sp - 8
        self.stack[self.fp] = before
        low = self.fp - room - (16 * self.chance.randrange(12) if moves else 0)
        for local in range(low, self.fp, 8):
            if self.chance.random() < 0.15:
                self.stack[local] = self.chance.choice([0, 1, local + 40])
        self._body(at, low, depth)
        self.fp = before


@pytest.mark.parametrize("tables", [True, False])
def test_callers_of_a_sleeper_are_right_or_cut_short(tables: bool) -> None:
    ends: Counter[StackEnd] = Counter()
    fixed: Counter[bool] = Counter()
    for seed in range(250):
        program = Program(seed, tables)
        program.run()
        walk = program.world.walk(
            program.stack, size=TOP - SP + 0x100, kind=SampleKind.BLOCKED, pc=BASE + LEAF + 2, sp=program.sp
        )
        found, callers = walk.pc.tolist()[1:], program.callers[::-1]
        assert found == callers[: len(found)], (seed, [hex(pc - BASE) for pc in found])
        end = StackEnd(walk.end[0])
        assert (end is StackEnd.ROOT) == (len(found) == len(callers)), seed
        ends[end] += 1
        sleeper = next(f for f in program.functions if f[0] <= callers[0] - BASE < f[0] + APART)
        if not sleeper[2]:
            fixed[end is StackEnd.ROOT] += 1
    assert ends[StackEnd.ROOT] >= 0.7 * ends.total(), ends
    assert fixed[True] >= 100
    assert not fixed[False]
