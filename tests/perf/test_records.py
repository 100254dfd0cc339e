"""Tests of the kernel's record formats, with synthetic records in a ring in plain memory."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.linux.sampled_arch import PERF_ARCHES
from pyprof.collectors.perf.processes_from_records import ProcessEvents
from pyprof.collectors.perf.ring_buffer_records import (
    ABI_32,
    ABI_64,
    COMM,
    EXIT,
    FORK,
    LOST,
    MISC_COMM_EXEC,
    MMAP2,
    SAMPLE,
    Ring,
    Rings,
    SampleRecords,
    Scan,
    mapping_process,
    parse_comm,
    parse_lost,
    parse_mmap2,
    parse_task,
    read_samples,
    scan_ring,
)
from pyprof.model.address_space import Mapping
from pyprof.model.arch import X86_64

SIZE = 1 << 16
PAGE = 4096
STRIDE = (PAGE + SIZE + (1 << 16) + PAGE) // 8
END = 2**62


@dataclass
class Written:
    """A ring in the test's memory with a writer.

    Attributes:
        words: Memory of all rings.
        number: Index of this ring in the memory.
    """

    words: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(STRIDE, np.uint64))
    number: int = 0

    def __post_init__(self) -> None:
        first = self.number * STRIDE
        self.ring = Ring(self.words, first, SIZE)
        self.data = self.words[first:].view(np.uint8)[PAGE : PAGE + SIZE]
        self.head = 0

    def start_at(self, position: int) -> None:
        self.head = position
        self._publish()
        self.ring.release_records(position)

    def write(self, record: bytes) -> None:
        at = np.arange(self.head, self.head + len(record)) % SIZE
        self.data[at] = np.frombuffer(record, np.uint8)
        self.head += len(record)
        self._publish()

    def _publish(self) -> None:
        self.words[self.number * STRIDE + 1024 // 8] = self.head

    def read(self, until: int = END) -> tuple[Scan, SampleRecords]:
        found = Scan()
        scan_ring(self.ring, self.words, until, found)
        samples, _ = read_samples(self.words, found.samples)
        return found, samples


def sample(time: int, tid: int, stack: bytes, room: int = 512, abi: int = 2, misc: int = 2) -> bytes:
    """Return a PERF_RECORD_SAMPLE. Registers contain 100 + their index in asm/perf_regs.h, and sp is 0x7000 + 8 *
    tid.
    """
    regs = [100 + n for n in range(17)]
    regs[7] = 0x7000 + 8 * tid
    body = struct.pack("=QIIQIIQ17QQ", 1, 7, tid, time, 3, 0, abi, *regs, room)
    body += stack.ljust(room, b"\xee") + struct.pack("=Q", len(stack))
    return struct.pack("=IHH", SAMPLE, misc, 8 + len(body)) + body


def sample_of_aarch64(tid: int, abi: int) -> bytes:
    """Return a PERF_RECORD_SAMPLE of AArch64, whose register n contains 100 + n."""
    regs = [100 + n for n in range(33)]
    body = struct.pack("=QIIQIIQ33QQ", 1, 7, tid, 1, 3, 0, abi, *regs, 512)
    body += bytes([tid]) * 64 + b"\xee" * 448 + struct.pack("=Q", 64)
    return struct.pack("=IHH", SAMPLE, 2, 8 + len(body)) + body


def other(kind: int, time: int, body: bytes, misc: int = 0) -> bytes:
    body = body.ljust(-(-len(body) // 8) * 8, b"\0") + struct.pack("=IIQII", 7, 9, time, 3, 0)
    return struct.pack("=IHH", kind, misc, 8 + len(body)) + body


def test_samples_become_columns_and_their_stacks_stay_where_they_are() -> None:
    ring = Written()
    for n in range(5):
        ring.write(sample(10 + n, n, bytes([n]) * 64))
    found, samples = ring.read()
    assert samples.time_ns.tolist() == [10, 11, 12, 13, 14]
    assert samples.pid.tolist() == [7] * 5
    assert samples.tid.tolist() == [0, 1, 2, 3, 4]
    assert samples.size.tolist() == [64] * 5
    assert samples.base.tolist() == [0x7000 + 8 * n for n in range(5)]
    # order: rax rdx rcx rbx rsi rdi rbp rsp r8..r15 rip
    expected = [100, 103, 102, 101, 104, 105, 106, 0x7000, *range(109, 117), 108]
    assert samples.regs[0].tolist() == expected
    assert samples.regs.shape[1] == len(X86_64.registers)
    whole = ring.words.view(np.uint8)
    for n, offset in enumerate(samples.offset.tolist()):
        assert bytes(whole[offset : offset + 64]) == bytes([n]) * 64
    assert len(found.samples) == 1
    found.release_records()
    assert ring.ring.tail == ring.head


def test_samples_of_aarch64_have_its_registers() -> None:
    machine = PERF_ARCHES["aarch64"]
    ring = Written()
    for tid, abi in ((1, ABI_64), (2, ABI_32)):
        ring.write(sample_of_aarch64(tid, abi))
    found = Scan()
    scan_ring(ring.ring, ring.words, END, found)
    samples, _ = read_samples(ring.words, found.samples, machine=machine)
    assert samples.tid.tolist() == [1, 2]
    assert samples.narrow.tolist() == [False, True]
    assert samples.regs.tolist() == [[*range(100, 133)]] * 2
    assert samples.base.tolist() == [131] * 2
    whole = ring.words.view(np.uint8)
    assert [bytes(whole[at : at + 64]) for at in samples.offset.tolist()] == [b"\1" * 64, b"\2" * 64]
    assert samples.size.tolist() == [64, 64]
    narrow = dict(zip(machine.narrow.registers, samples.regs[1, machine.narrow_columns].tolist(), strict=True))
    assert {name: narrow[name] for name in ("r0", "sp", "lr", "pc")} == {"r0": 100, "sp": 113, "lr": 114, "pc": 132}


def test_record_that_wraps_around_lies_in_one_piece() -> None:
    stack = bytes(range(256)) * 2
    size = len(sample(0, 0, stack))
    for before_end in range(8, size, 8):
        ring = Written()
        ring.start_at(3 * SIZE - before_end)
        ring.write(sample(1, 1, stack))
        ring.write(sample(2, 2, stack))
        _, samples = ring.read()
        assert samples.tid.tolist() == [1, 2]
        whole = ring.words.view(np.uint8)
        for offset in samples.offset.tolist():
            assert bytes(whole[offset : offset + 512]) == stack


def test_records_of_other_kinds_and_sizes_do_not_hide_samples() -> None:
    ring = Written()
    ring.write(sample(1, 1, b"a" * 8))
    ring.write(other(FORK, 2, struct.pack("=IIIIQ", 7, 7, 5, 4, 2)))
    ring.write(sample(3, 1, b"b" * 8, misc=1))
    ring.write(sample(4, 1, b"c" * 8, room=1024))
    ring.write(other(LOST, 5, struct.pack("=QQ", 1, 42)))
    ring.write(sample(6, 1, b"d" * 8, room=1024, misc=2))
    found, samples = ring.read()
    assert samples.time_ns.tolist() == [1, 3, 4, 6]
    assert [record.kind for record in found.others] == [FORK, LOST]
    assert parse_task(found.others[0].body) == (7, 7, 5, 4)
    assert parse_lost(LOST, found.others[1].body) == 42
    assert found.gaps == [(4, 5)]


def test_time_of_lost_samples_is_a_gap_from_the_last_record_of_an_earlier_reading() -> None:
    ring = Written()
    ring.write(sample(3, 1, b""))
    ring.write(sample(4, 1, b""))
    ring.read()[0].release_records()
    ring.write(other(LOST, 9, struct.pack("=QQ", 1, 42)))
    found, _ = ring.read()
    assert found.gaps == [(4, 9)]
    found.release_records()
    while ring.head - ring.ring.tail < SIZE - 2048:
        ring.write(sample(10, 1, b"", room=1024))
    assert ring.read(until=9)[0].gaps == []
    assert ring.read()[0].gaps == [(10, 2**62)]


def test_what_is_later_than_asked_stays_in_the_ring() -> None:
    ring = Written()
    for n in range(6):
        ring.write(sample(n, 1, b""))
    ring.write(other(EXIT, 6, bytes(24)))
    found, samples = ring.read(until=3)
    assert samples.time_ns.tolist() == [0, 1, 2, 3]
    found.release_records()
    found, samples = ring.read(until=5)
    assert samples.time_ns.tolist() == [4, 5]
    assert not found.others
    found.release_records()
    found, _ = ring.read()
    assert [record.time_ns for record in found.others] == [6]


def test_samples_without_registers_are_counted_and_32_bit_ones_told_apart() -> None:
    ring = Written()
    ring.write(sample(1, 1, b"a" * 8))
    ring.write(sample(2, 2, b"a" * 8, abi=1))
    ring.write(sample(3, 3, b"a" * 8, abi=0))
    found = Scan()
    scan_ring(ring.ring, ring.words, END, found)
    samples, left_out = read_samples(ring.words, found.samples)
    assert (samples.tid.tolist(), samples.narrow.tolist()) == ([1, 2], [False, True])
    assert left_out.tolist() == [7], "its pid"


Event = tuple[int, int, int, int]
"""(number of the ring, kind, process, parent) of a record."""


def events() -> st.SearchStrategy[list[Event]]:
    pids = st.integers(1, 6)
    kinds = st.sampled_from([COMM, EXIT, FORK, MMAP2, LOST])
    return st.lists(st.tuples(st.integers(0, 1), kinds, pids, pids), max_size=25)


def of_family(happened: list[Event], known: set[int]) -> list[int]:
    """Return the indices of records of known processes and of children that they have forked before."""
    family, found = set(known), []
    for number, (_, kind, pid, parent) in enumerate(happened):
        ours = pid in family or (kind == FORK and parent in family)
        if ours and kind == FORK:
            family.add(pid)
        if ours or kind == LOST:
            found.append(number)
    return found


@settings(deadline=None, max_examples=200)
@given(events(), st.sets(st.integers(1, 6), max_size=2))
def test_records_of_children_are_kept_and_others_dropped_in_any_ring(happened: list[Event], known: set[int]) -> None:
    words = np.zeros(2 * STRIDE, np.uint64)
    rings = [Written(words, number) for number in range(2)]
    for time_ns, (number, kind, pid, parent) in enumerate(happened):
        rings[number].write(other(kind, time_ns, struct.pack("=IIII", pid, parent, pid, parent)))
    found = Scan(recorded_pids=known)
    for ring in rings:
        scan_ring(ring.ring, words, END, found)
    found.add_descendants(words)
    assert sorted(record.time_ns for record in found.others) == of_family(happened, known)


class BothRings:
    """Several rings with the interface of Rings."""

    def __init__(self, *rings: Written) -> None:
        self.rings = {ring.number: ring.ring for ring in rings}
        self.words = rings[0].words


def test_news_that_were_looked_at_are_not_heard_again_when_their_records_are_taken() -> None:
    ring, begun = Written(), time.monotonic_ns()
    programs: list[tuple[int, str]] = []
    rings = cast("Rings", BothRings(ring))
    news = ProcessEvents(rings, {7, 8, 9}.__contains__, children=True, executed=lambda *each: programs.append(each))

    def executed(pid: int, at: int) -> None:
        ring.write(other(COMM, at, struct.pack("=II", pid, pid) + b"name", MISC_COMM_EXEC))

    executed(7, begun - 1_000_000_000)
    assert news.take_reported_pids() == {7}
    executed(8, time.monotonic_ns())
    found, _ = ring.read()
    assert news.note_scan(found) == {8}
    found.release_records()
    assert news.take_reported_pids() == set()
    executed(9, time.monotonic_ns())
    executed(10, time.monotonic_ns())  # not one of the recording
    assert news.take_reported_pids() == {9}
    assert programs == [(7, "name"), (8, "name"), (9, "name")]


def test_mapping_is_read_as_maps_would_show_it() -> None:
    body = struct.pack("=IIQQQIIQQII", 7, 9, 0x1000, 0x3000, 0x2000, 254, 1, 99, 0, 5, 2) + b"/lib/a b.so\0\0\0\0\0"
    assert parse_mmap2(body) == Mapping(0x1000, 0x4000, "r-xp", 0x2000, "fe:01", 99, "/lib/a b.so")
    nameless = struct.pack("=IIQQQIIQQII", 7, 9, 0x1000, 0x3000, 0, 0, 0, 0, 0, 7, 1) + b"//anon\0\0"
    found = parse_mmap2(nameless)
    assert found is not None
    assert (found.path, found.perms) == ("", "rwxs")
    assert (mapping_process(body), mapping_process(nameless), mapping_process(body[:40])) == (7, None, None)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 70000))
def test_bodies_and_rings_of_any_bytes_are_taken_or_refused(body: bytes, position: int) -> None:
    parse_mmap2(body)
    mapping_process(body)
    parse_comm(body)
    parse_task(body)
    for kind in (LOST, COMM, MMAP2):
        parse_lost(kind, body)
    ring = Written()
    ring.start_at(position & ~7)
    ring.write(body[: len(body) & ~7])
    found = Scan()
    scan_ring(ring.ring, ring.words, END, found)
    assert found.tails[0][1] <= ring.head
