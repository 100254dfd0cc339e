"""Tests of a thread that has not run yet: it is at its clone call, for which C libraries have no tables."""

from __future__ import annotations

import pytest

from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.options import UnwindOptions
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.made_stacks import BASE, STACK, HandImages, HandSource, MadeLane, batch_of, little_elf, reader_of
from tests.unwind.test_batch import MANY, assert_same

RAX, RBP, RSP, RIP = 0, 6, 7, 16
CLONE = 0x2000
CALLER = BASE + 0x105
"""Return address of a call of CLONE."""


def end_and_frames(result: int, code: bytes) -> tuple[StackEnd, list[int]]:
    image = bytearray(0x3000)
    image[0x100:0x105] = b"\xe8" + (CLONE - 0x105).to_bytes(4, "little")
    image[CLONE : CLONE + len(code)] = code
    sp = STACK + 0x1000
    registers = {RAX: result, RBP: sp + 0x40, RSP: sp, RIP: BASE + CLONE + code.index(b"\x0f\x05") + 2}
    lane = MadeLane(registers, {sp: CALLER, sp + 0x40: 0, sp + 0x48: CALLER}, [], sp - 0x80, 0x400)
    unwinder = Unwinder(
        HandImages(little_elf(X86_64, bytes(image))),
        UnwindOptions(sources=("eh_frame", "fp")),
        HandImages(little_elf(X86_64, bytes(image)))._diagnostics,
        {"eh_frame": reader_of(HandSource([]))},
    )
    batch = batch_of(X86_64, [lane] * MANY)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    assert walk.trust[0] == Trust.CONTEXT
    return StackEnd(walk.end[0]), walk.pc[: walk.start[1]].tolist()


@pytest.mark.parametrize("test", ["48 85 c0", "85 c0"], ids=["glibc", "musl"])
def test_new_thread_behind_its_clone_is_at_its_root(test: str) -> None:
    code = b"\xb8\xb3\x01\x00\x00\x0f\x05" + bytes.fromhex(test)
    assert end_and_frames(0, code) == (StackEnd.ROOT, [BASE + CLONE + 7])


def test_thread_that_made_it_has_a_caller() -> None:
    code = b"\xb8\xb3\x01\x00\x00\x0f\x05\x48\x85\xc0"
    assert end_and_frames(4711, code)[1][:2] == [BASE + CLONE + 7, CALLER]


def test_other_system_call_with_result_zero_has_a_caller() -> None:
    code = b"\xb8\x23\x00\x00\x00\x0f\x05\xc3"
    assert end_and_frames(0, code)[1][:2] == [BASE + CLONE + 7, CALLER]
