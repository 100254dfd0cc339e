"""Tests of the changed pages of long stacks: the stack that the records of the BPF program give is its memory."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from pyprof.collectors.bpf.long_stacks import LongStacks
from pyprof.collectors.bpf.ring_buffer_records import PAGE, STACK_ALONE, Flag, LossReason, read_records
from pyprof.model.sample_batch import StackBeyondCopy
from tests.bpf.made_memory import HEAP, HEAP_BYTES, PID
from tests.bpf.user_space import RED_ZONE, Ran, UserSpace, counted

pytestmark = pytest.mark.system

_WORDS = HEAP_BYTES // 8


class Program:
    """A thread whose stack is all of the heap, with random words.

    Attributes:
        memory: The stack's memory, as the words of the heap.
        truths: The memory from each sample's copy on.
    """

    def __init__(self, seed: int, end: int = HEAP + HEAP_BYTES, alone: int = STACK_ALONE) -> None:
        self.chance = random.Random(seed)
        self.memory = np.random.default_rng(seed).integers(0, 1 << 63, _WORDS, np.uint64)
        self.end = end
        self.told = UserSpace()
        self.told.memory(HEAP, HEAP + HEAP_BYTES, self.memory.tobytes())
        self.told.entry("processes", PID, bytes(8))
        self.told.entry("threads", PID, struct.pack("<Q", end | alone))
        self.truths: list[bytes] = []

    def write(self, address: int) -> None:
        value = self.chance.getrandbits(63)
        self.memory[(address - HEAP) // 8] = value
        self.told.poke(address, value)

    def sample(self, sp: int) -> None:
        self.told.sample(PID, PID, [*range(7), sp, *range(8, 17)])
        self.truths.append(self.memory.tobytes()[sp - RED_ZONE - HEAP : self.end - HEAP])

    def run(self) -> tuple[list[Ran], dict[LossReason, int]]:
        self.told.dump("counters")
        samples, (counters,) = self.told.run()
        return samples, counted(counters)


def reassemble(stacks: LongStacks, ran: Ran) -> tuple[bytes, StackBeyondCopy | None]:
    """Return the memory of a sample from its copy on, and what lies beyond the copy."""
    record = ran.record
    found = stacks.read_records(record, ran.words.view(np.uint8)).get(0)
    base, copy = int(record.base[0]), ran.copies[0]
    if found is None:
        return copy, None
    assert found.exact
    assert found.outer is not None
    whole = bytearray(copy + found.outer.words.tobytes()[base + len(copy) - found.outer.avma :])
    for spot in found.spots:
        whole[spot.avma - base : spot.avma - base + len(spot.data)] = spot.data
    assert found.length == len(whole)
    return bytes(whole), found


def stacks_without_loss() -> LongStacks:
    def forget(pid: int, end: int) -> None:
        raise AssertionError("a record is missing")

    return LongStacks(forget)


@pytest.mark.parametrize("end", [HEAP + HEAP_BYTES - PAGE, HEAP + HEAP_BYTES - 2000])
@pytest.mark.parametrize("seed", range(4))
def test_reassembled_stacks_are_the_memory_at_their_samples(seed: int, end: int) -> None:
    program = Program(seed, end)
    chance = program.chance
    for _ in range(60):
        sp = end - chance.choice((200_000, 400_000, 1_900_000)) - 8 * chance.randrange(8_000)
        for _ in range(chance.choice((0, 1, 3, 40))):
            program.write(HEAP + 8 * chance.randrange((sp - HEAP) // 8, (end - HEAP) // 8))
        if chance.random() < 0.3:  # calls that have returned left their pages as they were before, or not
            program.write(HEAP + 8 * chance.randrange((sp - HEAP) // 8))
        program.sample(sp)
    samples, counts = program.run()
    stacks = stacks_without_loss()
    assert counts == {LossReason.SAMPLED: 60}
    for ran, truth in zip(samples, program.truths, strict=True):
        assert ran.record.flags[0] & Flag.PAGES
        assert reassemble(stacks, ran)[0] == truth


def test_record_of_an_unchanged_stack_has_the_pages_at_its_ends_only() -> None:
    program = Program(1, HEAP + HEAP_BYTES - 800)
    for _ in range(3):
        program.sample(HEAP + 0x40008)
    samples, _ = program.run()
    stacks = stacks_without_loss()
    rests = [reassemble(stacks, ran)[1] for ran in samples]
    assert [len(ran.records[0][1]) > HEAP_BYTES - 0x41000 for ran in samples] == [True, False, False]
    assert all(len(ran.records[0][1]) < 5 * PAGE for ran in samples[1:])
    assert rests[1] is not None
    assert rests[2] is not None
    assert rests[1].outer is rests[2].outer
    assert rests[1].spots == ()


def test_longer_stack_and_one_with_other_memory_above_are_copied_up_to_the_limit() -> None:
    for program, sp in ((Program(1), HEAP + 1024), (Program(1, alone=0), HEAP + 0x40008)):
        program.told.entry("limits", 0, (300_000).to_bytes(8, "little"))
        program.sample(sp)
        (ran,), _ = program.run()
        assert not ran.record.flags[0] & Flag.PAGES
        assert ran.record.flags[0] & Flag.CUT
        assert len(ran.copies[0]) == 300_000 + RED_ZONE


def test_inner_part_is_copied_where_the_ring_has_no_room_and_later_records_are_whole() -> None:
    program = Program(3)
    program.told.constant("fill", 200_000)
    program.sample(HEAP + 0x80008)
    program.told.constant("fill", 4 << 20)
    for _ in range(2):
        program.sample(HEAP + 0x80008)
    samples, counts = program.run()
    assert counts == {LossReason.SAMPLED: 3}
    assert samples[0].record.flags[0] & (Flag.CUT | Flag.PAGES) == Flag.CUT
    assert samples[0].copies[0] == program.truths[0][: 32 << 10]
    stacks = stacks_without_loss()
    for ran, truth in zip(samples[1:], program.truths[1:], strict=True):
        assert reassemble(stacks, ran)[0] == truth


def test_stack_with_a_page_that_cannot_be_read_is_copied_as_others() -> None:
    program = Program(4)
    told = program.told = UserSpace()
    told.memory(HEAP, HEAP + 0x60000, program.memory.tobytes()[:0x5F000])
    told.memory(HEAP + 0x60000, HEAP + HEAP_BYTES, program.memory.tobytes()[0x60000:])
    told.entry("processes", PID, bytes(8))
    told.entry("threads", PID, struct.pack("<Q", program.end | STACK_ALONE))
    program.sample(HEAP + 0x50008)
    (ran,), counts = program.run()
    assert counts[LossReason.STACK_UNREADABLE] == 1
    assert not ran.record.flags[0] & Flag.PAGES
    assert ran.record.holes[0]


def test_stack_of_which_a_record_was_not_read_is_requested_again() -> None:
    program = Program(5)
    for _ in range(3):
        program.sample(HEAP + 0x40008)
    samples, _ = program.run()
    forgotten: list[tuple[int, int]] = []
    stacks = LongStacks(lambda pid, end: forgotten.append((pid, end)))
    assert reassemble(stacks, samples[0])[1] is None, "the copy has all of it"
    assert reassemble(stacks, samples[2])[1] is None, "its pages are not known"
    assert forgotten == [(PID, program.end)]
    assert reassemble(stacks, samples[0])[0] == program.truths[0], "it begins anew"
    assert reassemble(stacks, samples[1])[0] == program.truths[1]


def test_records_without_long_stacks_leave_nothing() -> None:
    assert stacks_without_loss().read_records(read_records(np.zeros(0, np.uint64), ()), np.zeros(0, np.uint8)) == {}
