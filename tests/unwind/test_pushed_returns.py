"""Tests of return addresses that no call pushed.

makecontext(3) and similar functions push a function's start at the end of a stack.
"""

from __future__ import annotations

import pytest

from pyprof.model.arch import AARCH64, X86_64, Arch
from pyprof.model.unwind_result import StackEnd
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.rules import FunctionRows, RegKind, RegRule, Rule
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

INNER, BEFORE, PUSHED = 0x100, 0x1C0, 0x200
"""Starts of functions. There may be a gap between BEFORE and PUSHED."""
CALLS = {"x86_64": b"\xe8\0\0\0\0", "aarch64": b"\0\0\0\x94"}


def walked(arch: Arch, ra: int, before_ends: int, called: bool = False) -> tuple[StackEnd, list[int]]:
    """Return how a walk ends and its program counters.

    Args:
        arch: The architecture.
        ra: Return address of the innermost function.
        before_ends: End of the function at BEFORE.
        called: Whether a call instruction ends at PUSHED.
    """
    code = bytearray(b"\x1f\x20\x03\xd5" * (SPAN // 4) if arch is AARCH64 else b"\x90" * SPAN)
    if called:
        call = CALLS[arch.name]
        code[PUSHED - len(call) : PUSHED] = call
    plain = Rule(arch.sp, 16, RegRule(RegKind.AT_CFA, -8))
    functions = [(INNER, INNER + 64), (BEFORE, before_ends), (PUSHED, PUSHED + 32)]
    source = HandSource([FunctionRows(start, end, (start,), (plain,)) for start, end in functions])
    unwinder = Unwinder(
        HandImages(little_elf(arch, bytes(code))),
        UnwindOptions(),
        Diagnostics(),
        {"eh_frame": reader_of(source)},
    )
    sp = STACK + 0x1000
    registers = {arch.pc: BASE + INNER + 8, arch.sp: sp, arch.fp: 0x1234560}
    words = {sp + 8: BASE + ra, sp + 24: 0x1234}
    walk = unwinder.walk(batch_of(arch, [MadeLane(registers, words, [], sp, 64)]))
    return StackEnd(walk.end[0]), [pc - BASE for pc in walk.pc.tolist()]


@pytest.mark.parametrize("arch", [X86_64, AARCH64], ids=lambda arch: arch.name)
def test_stack_ends_where_the_beginning_of_a_function_was_pushed(arch: Arch) -> None:
    assert walked(arch, PUSHED, PUSHED - 16) == (StackEnd.ROOT, [INNER + 8, PUSHED])


@pytest.mark.parametrize("arch", [X86_64, AARCH64], ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    ("ra", "before_ends", "called"),
    [
        (PUSHED, PUSHED - 16, True),
        (PUSHED, PUSHED, False),
        (PUSHED + 4, PUSHED, False),
        (PUSHED - 8, PUSHED - 16, False),
        (PUSHED - 16, PUSHED - 16, False),
    ],
    ids=["called", "end of a function", "within a function", "between two", "behind a function"],
)
def test_it_ends_nowhere_else(arch: Arch, ra: int, before_ends: int, called: bool) -> None:
    end, pcs = walked(arch, ra, before_ends, called)
    assert end is not StackEnd.ROOT
    assert pcs[0] == INNER + 8
