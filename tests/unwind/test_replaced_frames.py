"""Tests of functions that replace their own frame by another one, as libgcc at the end of a throw and longjmp(3) do."""

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

OUTER, OUTER_BY_FP, OTHER, LEAVER, INSTALL, HOOK, RESTORER = 0x100, 0x140, 0x180, 0x200, 0x300, 0x340, 0x380
"""Offsets of functions. The first three call LEAVER, LEAVER and INSTALL. LEAVER calls INSTALL and HOOK, and jumps."""
INSTALLED, JUMP = LEAVER + 0x18, LEAVER + 0x40
"""Offsets at which INSTALL returns into LEAVER, and at which LEAVER changes the stack pointer."""
JUMPS = {"x86_64": bytes.fromhex("4889cc59ffe1"), "aarch64": bytes.fromhex("ff63248bc0035fd6")}
ARCHES = pytest.mark.parametrize("arch", [X86_64, AARCH64], ids=lambda arch: arch.name)
RA = RegRule(RegKind.AT_CFA, -8)
LEAVER_SIZE = 0x80
FP = STACK + 0x1100


def call(arch: Arch, code: bytearray, returns_to: int, target: int) -> None:
    """Write a call instruction before this return address."""
    if arch is X86_64:
        code[returns_to - 5 : returns_to] = b"\xe8" + (target - returns_to).to_bytes(4, "little", signed=True)
    else:
        words = (target - (returns_to - 4)) >> 2
        code[returns_to - 4 : returns_to] = (0x94000000 | words & 0x3FFFFFF).to_bytes(4, "little")


def unwinder_of(arch: Arch) -> Unwinder:
    code = bytearray((b"\x1f\x20\x03\xd5" if arch is AARCH64 else b"\x90" * 4) * (SPAN // 4))
    for returns_to, target in (
        (OUTER + 16, LEAVER),
        (OUTER_BY_FP + 16, LEAVER),
        (OTHER + 16, INSTALL),
        (INSTALLED, INSTALL),
        (LEAVER + 0x28, HOOK),
    ):
        call(arch, code, returns_to, target)
    code[JUMP : JUMP + len(JUMPS[arch.name])] = JUMPS[arch.name]
    plain = Rule(arch.sp, 16, RA)
    by_fp = Rule(arch.fp, 16, RA)
    columns = [*sorted(EH_COLUMNS[arch.name]), arch.fp]
    leaver = Rule(arch.sp, LEAVER_SIZE, RA, tuple((c, RegRule(RegKind.AT_CFA, -16 - 8 * c)) for c in columns))
    restorer = Rule(0, 0, RegRule(RegKind.REG_PLUS, 0, 1), ((arch.sp, RegRule(RegKind.REG_PLUS, 0, 2)),))
    rules = {OUTER: plain, OUTER_BY_FP: by_fp, OTHER: plain, INSTALL: plain, HOOK: plain, RESTORER: restorer}
    functions = [FunctionRows(start, start + 0x40, (start,), (rule,)) for start, rule in rules.items()]
    functions.append(FunctionRows(LEAVER, LEAVER + 0x80, (LEAVER,), (leaver,)))
    images = HandImages(little_elf(arch, bytes(code)))
    return Unwinder(images, UnwindOptions(), Diagnostics(), {"eh_frame": reader_of(HandSource(functions))})


EH_COLUMNS = {"x86_64": {0, 1}, "aarch64": {0, 1, 2, 3}}


def walked(arch: Arch, pc: int, returns_to: int) -> tuple[StackEnd, list[int]]:
    """Return how the walk of a stack ends and its program counters, for any number of samples and for both walkers.

    Args:
        arch: The architecture.
        pc: Program counter of the thread: in INSTALL, RESTORER or LEAVER.
        returns_to: Return address in LEAVER's frame.
    """
    sp = at = STACK + 0x1000
    words = {}
    if pc >= INSTALL:
        words[at + 8] = BASE + INSTALLED
        at += 16
    words |= {at + LEAVER_SIZE - 8: BASE + returns_to, FP + 8: 0}
    registers = {arch.pc: BASE + pc, arch.sp: sp, arch.fp: FP, 0: sp, 1: BASE + OUTER + 16, 2: sp + 64}
    unwinder = unwinder_of(arch)
    found = []
    for count in (1, 40):
        batch = batch_of(arch, [MadeLane(registers, words, [], sp, 0x200) for _ in range(count)])
        for walk in (unwinder.walk(batch), unwinder.walk_scalar(batch)):
            for lane in range(count):
                pcs = walk.pc[walk.start[lane] : walk.start[lane + 1]].tolist()
                found.append((StackEnd(walk.end[lane]), [pc - BASE for pc in pcs]))
    assert found == found[:1] * len(found)
    return found[0]


@ARCHES
def test_caller_is_found_while_its_return_address_follows_a_call(arch: Arch) -> None:
    frames = [INSTALL + 8, INSTALLED, OUTER + 16]
    assert walked(arch, INSTALL + 8, OUTER + 16) == (StackEnd.ROOT, frames)
    assert walked(arch, INSTALLED, OUTER + 16) == (StackEnd.ROOT, frames[1:])


@ARCHES
@pytest.mark.parametrize("returns_to", [OTHER + 16, OUTER + 32], ids=["call of another function", "no call"])
def test_stack_ends_in_the_unwinder_where_no_call_proves_the_caller(arch: Arch, returns_to: int) -> None:
    assert walked(arch, INSTALL + 8, returns_to) == (StackEnd.UNWINDER, [INSTALL + 8, INSTALLED])
    assert walked(arch, INSTALLED + 16, returns_to) == (StackEnd.UNWINDER, [INSTALLED + 16])


@ARCHES
def test_stack_ends_in_the_unwinder_where_a_lost_register_is_needed(arch: Arch) -> None:
    frames = [INSTALL + 8, INSTALLED, OUTER_BY_FP + 16]
    assert walked(arch, INSTALL + 8, OUTER_BY_FP + 16) == (StackEnd.UNWINDER, frames)


@ARCHES
def test_jump_into_the_handler_has_no_caller(arch: Arch) -> None:
    for pc in (JUMP, JUMP + 4):
        assert walked(arch, pc, OUTER + 16) == (StackEnd.UNWINDER, [pc])


@ARCHES
@pytest.mark.parametrize("pc", [LEAVER + 8, JUMP + 8], ids=["before the frame is replaced", "behind the jump"])
def test_rest_of_the_function_is_walked_by_its_rule(arch: Arch, pc: int) -> None:
    assert walked(arch, pc, OUTER + 32) == (StackEnd.ROOT, [pc, OUTER + 32])


@ARCHES
def test_stack_ends_in_code_that_restores_registers_from_a_buffer(arch: Arch) -> None:
    assert walked(arch, RESTORER + 8, OUTER + 16) == (StackEnd.UNWINDER, [RESTORER + 8])
