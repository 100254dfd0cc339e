"""Tests of switch records, and of the state of a wait from the registers and the code of its sample."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.context_switch_protocol import BLOCKED, IN, PREEMPTED
from pyprof.collectors.linux.sampled_arch import IN_REGISTER, PERF_ARCHES
from pyprof.collectors.offcpu.wall_clock_collector import UNKNOWN, WaitLabels, make_state_lookup
from pyprof.collectors.perf.context_switches import (
    MISC_OUT,
    MISC_PREEMPTED,
    SWITCH,
    SWITCH_CPU_WIDE,
    SwitchScan,
    scan_ring,
)
from pyprof.collectors.perf.ring_buffer_records import EXIT, LOST, read_samples
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.marker_frames import Blocked, KernelStack
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackSlab
from tests.perf.test_records import END, SIZE, Written, other, sample

LEFT, GONE = MISC_OUT, MISC_OUT | MISC_PREEMPTED


def switch(time: int, tid: int, misc: int = 0, wide: bool = False) -> bytes:
    body = struct.pack("=II", 1, 2) if wide else b""
    body += struct.pack("=IIQII", 7, tid, time, 3, 0)
    return struct.pack("=IHH", SWITCH_CPU_WIDE if wide else SWITCH, misc, 8 + len(body)) + body


def read(ring: Written, until: int = END, heard: int = 0) -> tuple[SwitchScan, list[tuple[int, int, int]], int]:
    found = SwitchScan()
    heard = scan_ring(ring.ring, ring.words, until, found, heard)
    _, *columns = found.read_switches(ring.words)
    return found, list(zip(*(column.tolist() for column in columns), strict=True)), heard


def test_runs_of_switches_among_samples_and_others_are_columns() -> None:
    ring = Written()
    expected = []
    for n in range(60):
        misc, kind = ((0, IN), (LEFT, BLOCKED), (GONE, PREEMPTED))[n % 3]
        ring.write(switch(10 * n, n, misc, wide=n >= 40))
        expected.append((n, 10 * n, kind))
        if n % 17 == 0:
            ring.write(sample(10 * n + 1, n, b"stack"))
        if n % 23 == 0:
            ring.write(other(EXIT, 10 * n + 2, struct.pack("=IIII", 7, 7, n, n)))
    found, switches, heard = read(ring)
    assert switches == expected
    assert set(found.read_switches(ring.words)[0].tolist()) == {7}
    assert read_samples(ring.words, found.samples)[0].tid.tolist() == [0, 17, 34, 51]
    assert [record.kind for record in found.others] == [EXIT] * 3
    assert (heard, found.gaps, found.broken) == (590, [], 0)
    found.release_records()
    assert ring.ring.tail == ring.head


def test_switches_around_the_rings_end_and_after_the_time_asked_for() -> None:
    ring = Written()
    ring.start_at(SIZE - 96)
    for n in range(9):
        ring.write(switch(n, n, wide=True))
    found, switches, _ = read(ring, until=5)
    assert [tid for tid, _, _ in switches] == [0, 1, 2, 3, 4, 5]
    found.release_records()
    assert [tid for tid, _, _ in read(ring)[1]] == [6, 7, 8]


def test_time_of_lost_records_and_of_a_full_ring_is_a_gap() -> None:
    ring = Written()
    ring.write(switch(100, 1))
    ring.write(other(LOST, 900, struct.pack("=QQ", 1, 55)))
    ring.write(switch(1000, 1, LEFT))
    found, switches, heard = read(ring)
    assert (found.gaps, len(switches), heard) == ([(100, 900)], 2, 1000)
    found.release_records()
    while ring.head - ring.ring.tail < SIZE - 32:
        ring.write(switch(2000, 1))
    assert read(ring)[0].gaps == [(2000, 2**62)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=8, max_size=64), max_size=40), st.integers(0, 2**40))
def test_a_ring_of_any_bytes_is_read_to_its_end_or_refused(pieces: list[bytes], position: int) -> None:
    ring = Written()
    ring.start_at(position & ~7)
    for piece in pieces:
        record = piece[: len(piece) & ~7]
        if piece[0] & 1:  # half of the records have a valid header
            record = (
                struct.pack("=IHH", (2, 4, 9, 14, 15)[piece[1] % 5], 0, max(len(record), 32))
                + record.ljust(24, b"\0")[:24]
            )
        ring.write(record)
    found, switches, _ = read(ring)
    assert len(switches) <= len(pieces) * 8
    found.release_records()
    assert ring.ring.tail <= ring.head


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("90 b8 ca 00 00 00 0f 05", 202),
        ("41 b8 ca 00 00 00 0f 05", -1),  # mov $202,%r8d sets another register
        ("00 00 00 00 31 c0 0f 05", 0),
        ("00 00 00 00 89 d0 0f 05", -1),
        ("90 b8 ca 00 00 00 0f 34", -1),
        ("0f 05", -1),
    ],
)
def test_number_of_a_call_is_in_the_instruction_before_it(code: str, number: int) -> None:
    assert PERF_ARCHES["x86_64"].coded_call(bytes.fromhex(code)) == number


@pytest.mark.parametrize(
    ("code", "number"), [("c8 0c 80 d2 01 00 00 d4", IN_REGISTER), ("01 00 00 d4 1f 20 03 d5", -1)]
)
def test_number_of_a_call_of_aarch64_is_in_a_register(code: str, number: int) -> None:
    assert PERF_ARCHES["aarch64"].coded_call(bytes.fromhex(code)) == number
    assert PERF_ARCHES["aarch64"].wide.registers[PERF_ARCHES["aarch64"].call_column] == "x8"


def waiting(
    chain: KernelStack, rax: int, rcx: int, pc: int = 0x1008, kind: SampleKind = SampleKind.STOPPED
) -> SampleBatch:
    """Return a batch of one sample whose code before the pc is that of a futex call."""
    code = bytes.fromhex("90b8ca0000000f05")
    space = AddressSpace(1, 7, 1, (), lambda avma, size: code if (avma, size) == (0x1000, 8) else b"", "")
    regs = np.zeros((1, len(X86_64.registers)), np.uint64)
    for name, value in (("rax", rax), ("rcx", rcx), ("rip", pc)):
        regs[0, X86_64.registers.index(name)] = value
    one = np.ones(1, np.int64)
    return SampleBatch(
        X86_64, np.full(1, kind, np.uint8), one, one.astype(np.int32), one.astype(np.int32) * 7, one.astype(np.int32),
        one.astype(np.int32), one, regs, StackSlab(np.zeros(0, np.uint8), one.astype(np.uint64), one, one), {1: space},
        kernel_stack=one.astype(np.int32), kernel_stacks=((), chain),
    )  # fmt: skip


def label(labels: WaitLabels, batch: SampleBatch, blocked: bool = True) -> tuple[str, int]:
    done = labels.label_samples(batch, np.array([blocked]))
    assert done.kernel_stack is not None
    found = done.kernel_stacks[int(done.kernel_stack[0])][0]
    assert isinstance(found, Blocked)
    return found.state, found.call


IN_CALL = 2**64 - 38
CHAIN = (0xFFFFFFFF81000010, 0xFFFFFFFF81000100)


def test_registers_tell_a_system_call_from_a_fault_and_looks_tell_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyprof.collectors.offcpu.wall_clock_collector.make_state_lookup", lambda: lambda chain: UNKNOWN
    )
    labels = WaitLabels(kernel=False)
    call = waiting(CHAIN, IN_CALL, 0x1008)
    assert label(labels, call) == (UNKNOWN, 202)
    assert label(labels, call, blocked=False) == ("P", -1)
    assert label(labels, waiting(CHAIN, 1, 0x1008)) == (UNKNOWN, -1)  # outside of a system call
    assert label(labels, waiting(CHAIN, IN_CALL, 0x77)) == (UNKNOWN, -1)  # in a page fault
    labels.learn(call, [(0, Blocked("x86_64", "R", 202))])
    assert label(labels, call) == (UNKNOWN, 202)  # state R does not show the kind of wait
    labels.learn(call, [(0, Blocked("x86_64", "D", 202))])
    assert label(labels, call) == ("D", 202)
    assert label(labels, waiting((1,), IN_CALL, 0x1008)) == (UNKNOWN, 202)


def test_a_call_whose_number_is_not_in_the_code_is_known_by_looks_at_the_same_place() -> None:
    labels = WaitLabels(kernel=False)
    elsewhere = waiting(CHAIN, IN_CALL, 0x2000, pc=0x2000)
    assert label(labels, elsewhere)[1] == -1
    look = waiting((Blocked("x86_64", "S", 232),), 0, 0, pc=0x2000, kind=SampleKind.BLOCKED)
    assert labels.relabel_samples(look).kernel_stacks == look.kernel_stacks
    assert label(labels, elsewhere)[1] == 232
    woken = waiting((Blocked("x86_64", "R", 232),), 0, 0, pc=0x2000, kind=SampleKind.BLOCKED)
    again = labels.relabel_samples(woken)
    assert again.kernel_stack is not None
    assert again.kernel_stacks[int(again.kernel_stack[0])][0] == Blocked("x86_64", "S", 232)


def test_state_by_the_kernels_functions(tmp_path: Path) -> None:
    listed = tmp_path / "kallsyms"
    listed.write_text(
        "ffffffff81000000 T schedule\nffffffff81000100 T io_schedule\nffffffff81000140 t io_schedule_timeout.cold\n"
        "ffffffff81000180 T futex_wait\n"
    )
    state = make_state_lookup(str(listed))
    assert state((0xFFFFFFFF81000010, 0xFFFFFFFF81000110)) == "D"
    assert state((0xFFFFFFFF81000010, 0xFFFFFFFF81000190)) == "S"
    assert state(()) == UNKNOWN
    listed.write_text("0000000000000000 T io_schedule\n0000000000000000 T futex_wait\n")
    assert make_state_lookup(str(listed))(CHAIN) == UNKNOWN
    assert make_state_lookup(str(tmp_path / "missing"))(CHAIN) == UNKNOWN
