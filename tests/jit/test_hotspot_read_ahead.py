"""Tests of Java code that is read while its samples wait to be unwound, because HotSpot may discard it before."""

from __future__ import annotations

import struct

import pytest

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.hotspot.java_code_source import MIN_REST_NS, HotspotCode
from pyprof.runtime_code.hotspot.stack_words import read_stack_words
from pyprof.runtime_code.hotspot.vm_structs import SYMBOLS
from tests.jit.java_vm import BASE, CODE, HEAP, SYMBOL_TABLE, image
from tests.jit.memory import Memory
from tests.unwind.made_stacks import MadeLane, batch_of

LOW, SIZE = 0x7000_0000, 0x400
RETURN = CODE + 17
NAME = "p.Own$$Lambda.run"
COMPILE_ID = HEAP - BASE + 0x210 + 304


class EndingJava:
    """A Java virtual machine whose memory is not readable any more after its end."""

    def __init__(self) -> None:
        self.memory, self.has_ended = Memory(), False
        self.memory.put(BASE, image())
        self.space = AddressSpace(1, 1, 1, (), self._read, "/")
        self.source = HotspotCode(X86_64, Diagnostics())
        assert self.check(1)

    def _read(self, avma: int, size: int) -> bytes:
        return b"" if self.has_ended else self.memory.read(avma, size)

    def check(self, now_ns: int) -> bool:
        symbols = [(name, SYMBOL_TABLE + 8 * at) for at, name in enumerate(SYMBOLS)]
        return self.source.update(CodeScan(self.space, X86_64, 0, now_ns, symbols))

    def read_ahead(self, time_ns: int) -> None:
        batch = batch_of(X86_64, [MadeLane({}, {LOW + 0x40: RETURN}, [], LOW, SIZE)])
        batch.time_ns[:] = time_ns
        self.source.read_ahead(self.space, batch)

    def recompile(self, number: int) -> None:
        self.memory.pieces[BASE][COMPILE_ID : COMPILE_ID + 4] = struct.pack("<i", number)

    def compile_id(self, time_ns: int) -> int:
        span = self.source.spans.find(RETURN - 1, time_ns)
        assert span is not None
        return span.value.blob.compile_id


def test_code_that_was_read_ahead_has_its_name_and_rules_after_the_process_ended() -> None:
    java = EndingJava()
    java.read_ahead(10)
    java.has_ended = True
    java.check(2 * MIN_REST_NS)
    span = java.source.spans.find(RETURN - 1, 10)
    assert span is not None
    assert (java.source.name(span).name, bool(span.value.places[RETURN - 1])) == (NAME, True)
    assert java.source.rows(span, RETURN - 1, False, lambda pc, exact: None) is not None


def test_code_that_was_not_read_ahead_is_unknown_after_the_process_ended() -> None:
    java = EndingJava()
    java.has_ended = True
    assert java.source.spans.find(RETURN - 1, 10) is None


@pytest.mark.parametrize("seen", ["by the check", "by the next batch"])
def test_samples_that_wait_keep_the_code_that_another_replaced(seen: str) -> None:
    java = EndingJava()
    java.read_ahead(10)
    java.recompile(7)
    if seen == "by the check":
        java.check(2 * MIN_REST_NS)
    java.read_ahead(20)
    assert [java.compile_id(time_ns) for time_ns in (5, 10, 11, 20, 30)] == [0, 0, 7, 7, 7]


def test_end_of_the_process_during_a_check_ends_no_description() -> None:
    java = EndingJava()
    java.read_ahead(10)
    java.has_ended = True
    java.read_ahead(20)
    java.check(2 * MIN_REST_NS)
    assert java.compile_id(3 * MIN_REST_NS) == 0


def words_of(memory: dict[int, int]) -> SampleBatch:
    return batch_of(X86_64, [MadeLane({}, memory, [], LOW, SIZE)])


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, {(0x600, 0x700)}),
        ({LOW + 0x108: 0x400000}, set()),  # a return address elsewhere
        ({LOW + 0xF8: LOW + 0x100}, set()),  # the caller's sp is inside the frame
        ({LOW + 0xF8: LOW + 0x40000}, set()),
        ({LOW + 0xF8: LOW + 0x124}, set()),
    ],
)
def test_interpreter_frames_are_words_with_the_callers_sp(changed: dict[int, int], found: set[tuple[int, int]]) -> None:
    fp = LOW + 0x100
    frame = {fp + 8: RETURN, fp - 8: fp + 0x20, fp - 24: 0x600, fp - 64: 0x700}
    batch = words_of(frame | changed)
    space = AddressSpace(int(batch.space[0]), 1, 1, (), lambda avma, size: b"", "/")
    words = read_stack_words(batch, space, HEAP, HEAP + 0x1000, -64)
    assert words.interpreted == found


def test_interpreter_frame_at_the_start_of_a_copy_is_left_out() -> None:
    fp = LOW + 0x18
    batch = words_of({fp + 8: RETURN, fp - 8: fp + 0x20, fp - 24: 0x600})
    space = AddressSpace(int(batch.space[0]), 1, 1, (), lambda avma, size: b"", "/")
    assert read_stack_words(batch, space, HEAP, HEAP + 0x1000, -64).interpreted == set()
