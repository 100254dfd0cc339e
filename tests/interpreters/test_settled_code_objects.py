"""Tests of code object heads that are read after a stop: code that changed meanwhile never keeps its name."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyprof.interpreters.cpython import code_objects
from pyprof.interpreters.cpython.code_objects import CodeCache
from pyprof.interpreters.cpython.object_reader import Memory
from pyprof.model.interpreter_reader_protocols import Span

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

AT, SIZE, IDENTITY = 8, 24, slice(8, 24)
ADDRESSES = (0x1000, 0x2000, 0x3000)


class Process:
    """A process with code objects.

    The first word of a head counts the reads, so that heads never repeat.

    Attributes:
        heads: Number of the code object at each address.
        gone: Whether the process has ended.
        late: Whether a read of several ranges returns nothing.
    """

    def __init__(self) -> None:
        self.heads = dict.fromkeys(ADDRESSES, 1)
        self.gone = self.late = False
        self.reads = self.calls = 0

    def head(self, address: int) -> bytes:
        self.calls += 1
        return struct.pack("<QQQ", self.calls, address, self.heads[address])

    def read_available(self, avma: int, size: int) -> bytes:
        address = avma - AT - IDENTITY.start
        assert size == IDENTITY.stop - IDENTITY.start
        return b"" if self.gone or address not in self.heads else self.head(address)[IDENTITY]

    def gather(self, spans: Sequence[Span]) -> memoryview:
        self.reads += 1
        data = b""
        for at, size in spans:
            if self.late or not (part := self.read_available(at, size)):
                break
            data += part
        return memoryview(data)


def settled(process: Process) -> CodeCache:
    codes = CodeCache(AT, SIZE, IDENTITY, Memory(process.read_available))
    codes.add_heads({address: process.head(address) for address in ADDRESSES})
    return codes


def test_all_that_are_what_they_were_are_confirmed_by_one_read() -> None:
    process = Process()
    codes = settled(process)
    assert tuple(codes.confirm_heads(ADDRESSES, process.gather)) == ADDRESSES
    assert process.reads == 1
    assert codes.version == 0


def test_one_that_has_changed_is_not_confirmed_and_is_never_settled_again() -> None:
    process = Process()
    codes = settled(process)
    assert tuple(codes.confirm_heads(ADDRESSES, process.gather)) == ADDRESSES
    process.heads[0x2000] = 2
    assert tuple(codes.confirm_heads(ADDRESSES, process.gather)) == (0x1000, 0x3000)
    assert codes.version == 1
    codes.add_heads({0x2000: process.head(0x2000)})
    assert 0x2000 not in codes.heads
    assert tuple(codes.confirm_heads(ADDRESSES, process.gather)) == (0x1000, 0x3000)


def test_one_that_cannot_be_read_any_more_does_not_hide_the_others() -> None:
    process = Process()
    codes = settled(process)
    del process.heads[0x2000]
    assert tuple(codes.confirm_heads(ADDRESSES, process.gather)) == (0x1000, 0x3000)


def test_one_that_has_changed_is_not_confirmed_where_no_more_is_read_at_once() -> None:
    process = Process()
    codes = settled(process)
    process.late = True
    process.heads[0x3000] = 2
    assert tuple(codes.confirm_heads(ADDRESSES, process.gather)) == (0x1000, 0x2000)


def test_names_of_a_process_that_has_ended_since_are_those_that_were_known() -> None:
    process = Process()
    codes = settled(process)
    process.gone = True
    assert tuple(codes.confirm_heads((*ADDRESSES, 0x4000), process.gather)) == ADDRESSES
    assert codes.version == 0


def test_head_that_was_not_read_whole_settles_nothing() -> None:
    codes = CodeCache(AT, SIZE, IDENTITY, Memory(Process().read_available))
    codes.add_heads({0x1000: b"", 0x2000: bytes(SIZE - 8)})
    assert not codes.heads


class Changes(RuleBasedStateMachine):
    """A state machine of changing code objects: confirmed heads equal those at the stop."""

    @initialize()
    def begin(self) -> None:
        self.process = Process()
        self.codes = CodeCache(AT, SIZE, IDENTITY, Memory(self.process.read_available))
        self.fresh = 3

    @rule(address=st.sampled_from(ADDRESSES))
    def seen_in_a_stop(self, address: int) -> None:
        self.codes.add_heads({address: self.process.head(address)})

    @rule(address=st.sampled_from(ADDRESSES), head=st.integers(1, 3))
    def replaced(self, address: int, head: int) -> None:
        self.process.heads[address] = head

    @rule(changes=st.lists(st.sampled_from(ADDRESSES), max_size=2))
    def sampled(self, changes: list[int]) -> None:
        """Sample a stack, and then confirm the heads.

        Args:
            changes: Addresses that get a new code object after the thread resumes and before the heads are read.
        """
        used = tuple(address for address in ADDRESSES if address in self.codes.heads)
        at_stop = {address: self.process.head(address) for address in used}
        for address in changes:
            self.fresh += 1
            self.process.heads[address] = self.fresh
        for address in self.codes.confirm_heads(used, self.process.gather) if used else ():
            assert self.codes.heads[address][IDENTITY] == at_stop[address][IDENTITY]

    @invariant()
    def bounded(self) -> None:
        assert len(self.codes.heads) <= len(ADDRESSES)


Changes.TestCase.settings = settings(max_examples=200, deadline=None)
TestChanges = Changes.TestCase


def test_no_more_are_kept_than_are_allowed() -> None:
    process = Process()
    before, code_objects._MAX_CODES = code_objects._MAX_CODES, 2
    try:
        codes = settled(process)
        assert len(codes.heads) == 1
        assert codes.version == 1
        assert tuple(codes.confirm_heads(tuple(codes.heads), process.gather)) == tuple(codes.heads)
    finally:
        code_objects._MAX_CODES = before
