"""Batches for the native walker: recorded, random and hostile ones, each compared with the reference unwinder.

`python -m tests.unwind.hostile_walks LIBRARY SECONDS` walks them with another build of the native walker for so much
processor time, such as one with sanitizers, which ends the process at the first access out of bounds.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyprof.lazy_dataclasses import replace
from pyprof.model.arch import AARCH64, ARM, I386, S390X, X86_64, Arch
from pyprof.model.sample_batch import SampleBatch, StackSlab
from pyprof.model.unwind_result import Trust, Walk
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind import native_unwinder, unwinder
from pyprof.unwind.native_unwinder import BatchResult, NativeWalker, WalkerState, Why
from pyprof.unwind.rule_cache import RuleTable
from pyprof.unwind.rules import SAME, UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder
from tests.replay.playing import LOGS, played, unpacked
from tests.unwind.made_stacks import (
    BASE,
    FUNCTION,
    STACK,
    HandImages,
    HandSource,
    MadeLane,
    Program,
    batch_of,
    little_elf,
    make_lane,
    reader_of,
    unwinder_of,
)
from tests.unwind.test_batch import assert_same, damage

ARCHES = (X86_64, AARCH64, S390X, ARM, I386)
FUNCTIONS = 24
WORDS = 300


def random_rule(chance: random.Random, arch: Arch) -> Rule:
    """Return a rule, in most cases one that the native walker executes."""
    word = arch.word
    base = chance.choice((arch.sp, arch.sp, arch.fp))
    ra = RegRule(RegKind.AT_CFA, chance.choice((-word, -word, 0, -word + 1, 64 * word)))
    if arch.lr >= 0 and chance.random() < 0.3:
        ra = SAME
    regs = []
    if chance.random() < 0.6:
        slot = RegRule(RegKind.AT_CFA, word * chance.choice((-2, -2, -1, -40, 200)))
        regs.append((arch.fp, chance.choice((slot, slot, slot, UNDEFINED, SAME, RegRule(RegKind.CFA_PLUS, -word)))))
    if chance.random() < 0.15:
        regs.append((arch.sp, RegRule(RegKind.AT_CFA, word * chance.choice((-3, 1, 300)))))
    size = word * chance.choice((0, 1, 2, 2, 3, 5, 8)) + chance.choice((0, 0, 0, 1))
    rule = Rule(base, size, ra, tuple(regs), signal=chance.random() < 0.1, pac=chance.random() < 0.2)
    return chance.choice([rule] * 8 + [rule._replace(ra=UNDEFINED), rule._replace(cfa_deref=True)])


def random_lane(chance: random.Random, arch: Arch) -> MadeLane:
    """Return a stack of words that are addresses of code, of the stack itself, or anything."""
    base, word = STACK + 0x1000 + chance.choice((0, 0, 0, 4, 3)), arch.word

    def value() -> int:
        kinds = (
            BASE + FUNCTION * chance.randrange(1, FUNCTIONS + 2) + chance.randrange(FUNCTION),
            base + word * chance.randrange(WORDS),
            base + chance.randrange(word * WORDS),
            0,
            chance.randrange(1 << 8 * word),
            (chance.randrange(1 << 8 * word) & arch.pac_mask) | BASE + FUNCTION + 16,
        )
        return chance.choices(kinds, (14, 8, 1, 1, 1, 1))[0] & arch.mask

    memory = {base + word * at: value() for at in range(WORDS)}
    registers = {column: value() for column in range(len(arch.registers))}
    registers[arch.sp] = base + word * chance.randrange(20)
    registers[arch.pc] = BASE + FUNCTION * chance.randrange(1, FUNCTIONS + 2)
    return MadeLane(registers, memory, [], base, word * WORDS - chance.choice((0, 0, 3, 1000)))


def source_of(rules: Sequence[Rule], trust: Trust) -> HandSource:
    """Return the table of functions with these rules; one place in the middle has no table."""
    rows = [
        FunctionRows(at, at + FUNCTION, (at,), (rule,))
        for at, rule in ((FUNCTION * (number + 1), rule) for number, rule in enumerate(rules))
        if at != FUNCTION * (FUNCTIONS // 2)
    ]
    return HandSource(rows, trust=trust)


def compare_random(arch: Arch, seed: int, trust: Trust) -> None:
    """Walk random stacks by random rules and compare both walkers, also when the tables are filled."""
    chance = random.Random(seed)
    source = source_of([random_rule(chance, arch) for _ in range(FUNCTIONS)], trust)
    code = bytes(chance.choice((0xE8, 0x90, 0xFF, 0xD0)) for _ in range(FUNCTION * (FUNCTIONS + 4)))
    images = HandImages(little_elf(arch, code))
    found = Unwinder(images, UnwindOptions(max_depth=200), Diagnostics(), {"eh_frame": reader_of(source)})
    batch = batch_of(arch, [random_lane(chance, arch) for _ in range(40)])
    walk = found.walk(batch)
    assert_same(walk, found.walk_scalar(batch))
    assert_same(walk, found.walk(batch))


def compare_damaged(arch: Arch, seed: int) -> None:
    """Walk damaged stacks of a made program and compare both walkers."""
    program, chance = Program(arch, seed), np.random.default_rng(seed)
    lanes = [make_lane(program, 1 + n % 30, n % 4 == 3) for n in range(24)]
    for number, lane in enumerate(lanes):
        lane.space = 1 + number % 3
        for _ in range(int(chance.integers(0, 3))):
            damage(lane, chance, arch)
    batch, found = batch_of(arch, lanes), unwinder_of(program)
    assert_same(found.walk(batch), found.walk_scalar(batch))


def compare_recorded(log: Path) -> int:
    """Replay a recording, compare both walkers on each of its batches, and return the number of samples."""
    compared = 0
    walk_batch = Unwinder.walk

    def walk_both(self: Unwinder, batch: SampleBatch) -> Walk:
        nonlocal compared
        walk = walk_batch(self, batch)
        if not walk.shared:
            assert_same(walk, self.walk_scalar(batch))
            compared += len(batch)
        return walk

    Unwinder.walk = walk_both  # type: ignore[method-assign]
    try:
        with unpacked(log) as files:
            session, _ = played(log, files)
    finally:
        Unwinder.walk = walk_batch  # type: ignore[method-assign]
    assert session.failure is None
    return compared


class _RandomIndex:
    """Rules by lookup pc that mean nothing."""

    version = 1

    def __init__(self, chance: random.Random, rules: int) -> None:
        self._chance, self._rules = chance, rules

    def lasting_rule_id(self, pc: int, exact: bool) -> tuple[int, bool]:
        return self._chance.choice((self._chance.randrange(self._rules + 3), 0)), self._chance.random() < 0.5


def walk_lies(library: ctypes.CDLL, arch: Arch, seed: int) -> None:
    """Walk samples whose columns lie about their copies, and give answers that lie about everything."""
    chance, depth = random.Random(seed), 6
    table = RuleTable(arch)
    for _ in range(FUNCTIONS):
        table.intern(random_rule(chance, arch), chance.choice((Trust.EH_FRAME, Trust.CODE)))
    batch = batch_of(arch, [random_lane(chance, arch) for _ in range(12)])
    data, n = batch.stack.data, len(batch)
    odd = [0, 1, 7, len(data), len(data) - 3, -1, -(1 << 63), (1 << 63) - 1]
    offset, size = (
        [chance.choice([*odd, *real.tolist()]) for _ in range(n)] for real in (batch.stack.offset, batch.stack.size)
    )
    base = [chance.choice([0, (1 << 64) - 64, int(each)]) for each in batch.stack.base]
    slab = StackSlab(data.copy(), np.array(base, np.uint64), np.array(offset, np.int64), np.array(size, np.int64))
    result = BatchResult(*(np.zeros(n, kind) for kind in (np.int64, np.int64, np.uint8, np.uint64, np.uint64)))  # type: ignore[arg-type]
    walker, index = NativeWalker(library, arch, table, depth), _RandomIndex(chance, len(table))
    walker.start_batch(replace(batch, stack=slab), result)
    space, row = walker.open_space(True), walker.row
    walker.start_samples(np.arange(n), np.zeros(n, np.int64), [space])
    while (why := walker.walk_on()) != Why.DONE:
        space.grow()
        space.row.version = index.version = chance.randrange(1, 3)
        if why == Why.RULE:
            row.rule, row.lasting = index.lasting_rule_id(row.asked, bool(row.exact))
        elif why == Why.SAMPLE or chance.random() < 0.2:
            row.state, row.end = WalkerState.END, chance.randrange(9)
        else:
            row.pc, row.sp, row.fp, row.marks = (chance.randrange(1 << 64) for _ in range(4))
            row.exact, row.fp_known, row.trust = (chance.randrange(3) for _ in range(3))
    assert (result.count <= depth).all()
    assert int(result.count.sum()) == row.used


def main(library: ctypes.CDLL, seconds: float) -> None:
    unwinder.find_library = lambda: library  # type: ignore[attr-defined]
    for name in ("native", "python", "offcpu", "remote", "core"):
        assert compare_recorded(LOGS / f"{name}.zip") > 0, name
    seed, end = 0, time.process_time() + seconds
    while time.process_time() < end:
        for arch in ARCHES:
            compare_random(arch, seed, (Trust.EH_FRAME, Trust.CODE)[seed % 2])
            compare_damaged(arch, seed)
            walk_lies(library, arch, seed)
        seed += 1
    print(f"{seed} rounds")


if __name__ == "__main__":
    main(native_unwinder.prepare(ctypes.CDLL(sys.argv[1])), float(sys.argv[2]))
