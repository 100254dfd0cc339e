"""A synthetic program of a few functions with a stack, for walks that need the program's code."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyprof.model.arch import X86_64, Arch
from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.made_stacks import (
    BASE,
    SPAN,
    STACK,
    HandImages,
    HandSource,
    MadeLane,
    batch_of,
    little_elf,
    reader_of,
)

RBX, RBP, RSP, RIP = 3, 6, 7, 16
SP = STACK + 0x1000
AT_RA = RegRule(RegKind.AT_CFA, -8)
ROOT_RULE = Rule(RSP, 8, UNDEFINED)
FP_RULE = Rule(RBP, 16, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, -16)),))
LEAF_RULE = Rule(RSP, 8, AT_RA)

ROOT, CODE, OTHER, COVERED, FRAMED, LEAF, PLT = (0x1000 * n for n in range(1, 8))
"""Addresses of functions with these rules: ROOT_RULE, none, none, LEAF_RULE + 8, FP_RULE, LEAF_RULE, and a PLT jump."""


@dataclass
class World:
    """Code and tables of a program with a stack, which both walkers walk."""

    arch: Arch = X86_64
    entry: int = 0
    code: bytearray = field(default_factory=lambda: bytearray(SPAN))
    functions: dict[int, Rule] = field(
        default_factory=lambda: {ROOT: ROOT_RULE, COVERED: Rule(RSP, 16, AT_RA), FRAMED: FP_RULE, LEAF: LEAF_RULE}
    )
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    pointers: dict[int, int] = field(default_factory=dict)
    """Words of the target's memory outside of its stack, by address."""

    def read(self, avma: int, size: int) -> bytes:
        return self.pointers[avma].to_bytes(size, "little") if avma in self.pointers else b""

    def call(self, at: int, target: int | None = None) -> int:
        """Write a direct call into the code, or an indirect one if target is None, and return its return address."""
        if target is None:
            self.code[at : at + 2] = b"\xff\xd0"
            return BASE + at + 2
        self.code[at : at + 5] = b"\xe8" + (target - at - 5).to_bytes(4, "little", signed=True)
        return BASE + at + 5

    def walk(
        self,
        words: dict[int, int],
        size: int = 0x400,
        kind: SampleKind = SampleKind.STOPPED,
        sources: tuple[str, ...] = ("eh_frame", "fp"),
        many: int = 1,
        **registers: int,
    ) -> Walk:
        names = {"sp": self.arch.sp, "fp": self.arch.fp, "pc": self.arch.pc, "lr": self.arch.lr}
        known = {names.get(n, -1): v for n, v in {"sp": SP, **registers}.items()}
        lane = MadeLane(known, words, [], SP - 0x80, size + 0x80, kind)
        rows = [FunctionRows(svma, svma + 0x400, (svma,), (rule,)) for svma, rule in self.functions.items()]
        unwinder = Unwinder(
            HandImages(little_elf(self.arch, bytes(self.code), self.entry)),
            UnwindOptions(sources=sources),
            self.diagnostics,
            {"eh_frame": reader_of(HandSource(rows))},
        )
        batch = batch_of(self.arch, [lane] * many, self.read)
        walk = unwinder.walk_scalar(batch)
        assert walk.pc.tolist() == unwinder.walk(batch).pc.tolist()
        return walk


def found(walk: Walk) -> tuple[list[int], str]:
    return (walk.pc - BASE).tolist(), StackEnd(walk.end[0]).label
