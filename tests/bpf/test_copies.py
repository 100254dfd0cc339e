"""Tests of what one sample of the BPF program copies from synthetic memory: registers, stacks and flags."""

from __future__ import annotations

import pytest

from pyprof.collectors.bpf.ring_buffer_records import MOST_STACK, PAGE, STACK_SLACK, Flag, LossReason
from tests.bpf.made_memory import HEAP, HEAP_BYTES, PID, STACK, STACK_BYTES, MadeProcess
from tests.bpf.user_space import RED_ZONE, STACK_BEGINNING, Ran, UserSpace, counted

pytestmark = pytest.mark.system

NO_WAKEUP, FORCE_WAKEUP = 1, 2
UNKNOWN_STACK = 64 << 10


def said(process: MadeProcess, **what: int) -> UserSpace:
    """Return the BPF program with this process's memory and further settings of the simulated kernel."""
    told = process.in_user_space()
    for name, value in what.items():
        told.setting(name, value)
    return told


def sample(told: UserSpace, process: MadeProcess, in_kernel: bool = False) -> tuple[Ran, dict[LossReason, int]]:
    process.sample(told, in_kernel)
    told.dump("counters")
    samples, (counters,) = told.run()
    return samples[-1], counted(counters)


@pytest.mark.parametrize("in_kernel", [False, True])
def test_registers_are_those_of_user_mode(in_kernel: bool) -> None:
    process = MadeProcess(12)
    ran, _ = sample(said(process), process, in_kernel)
    assert ran.record.regs[0].tolist() == [*range(7), STACK, *range(8, 17)]
    assert bool(ran.record.flags[0] & Flag.KERNEL) == in_kernel


@pytest.mark.parametrize(
    ("limit", "size"), [(0, MOST_STACK), (100_000, 100_000), (300_000, 300_000), (2 << 20, MOST_STACK)]
)
def test_of_a_long_stack_as_much_is_copied_as_is_wanted(limit: int, size: int) -> None:
    process = MadeProcess(12)
    process.sp = HEAP + 0x40008
    process.heap[0x40000:] = bytes(range(256)) * ((HEAP_BYTES - 0x40000) // 256)
    told = said(process)
    told.entry("limits", 0, limit.to_bytes(8, "little"))
    ran, _ = sample(told, process)
    assert ran.copies[0] == process.at(process.sp - RED_ZONE)[: RED_ZONE + size]
    assert ran.record.flags[0] & Flag.CUT
    assert ran.copies[1] == process.at(HEAP + HEAP_BYTES - STACK_BEGINNING)
    assert int(ran.record.below_base[0]) == HEAP + HEAP_BYTES - STACK_BEGINNING


@pytest.mark.parametrize("beyond", [8, 5000, STACK_BEGINNING])
def test_where_a_stack_began_is_copied_behind_a_copy_that_does_not_reach_it(beyond: int) -> None:
    process = MadeProcess(12)
    process.stack[:] = bytes(n * 7 & 0xFF for n in range(STACK_BYTES))
    told = said(process)
    told.entry("limits", 0, (STACK_BYTES - beyond).to_bytes(8, "little"))
    ran, counts = sample(told, process)
    assert ran.copies == (process.at(STACK)[: STACK_BYTES - beyond], process.at(STACK + STACK_BYTES - beyond))
    assert counts == {LossReason.SAMPLED: 1}


@pytest.mark.parametrize(("first", "size"), [(0x1000, 0x1000 + STACK_SLACK), (STACK_BYTES - 100, STACK_BYTES)])
def test_arguments_and_environment_are_not_copied(first: int, size: int) -> None:
    process = MadeProcess(12)
    ran, _ = sample(said(process, start_stack=STACK + first), process)
    assert len(ran.copies[0]) == size


@pytest.mark.parametrize(("pointer", "size"), [(STACK + 0x2100, 0x2100), (STACK, STACK_BYTES), (HEAP, STACK_BYTES)])
def test_stack_above_the_thread_pointer_is_not_copied(pointer: int, size: int) -> None:
    process = MadeProcess(12)
    process.put(pointer, pointer)
    ran, _ = sample(said(process, pointer=pointer), process)
    assert len(ran.copies[0]) == size


def test_thread_pointer_that_is_no_c_library_s_says_nothing_of_a_stack() -> None:
    """Set a thread pointer like that of a Go program, which points somewhere into the heap that also has the stacks."""
    process = MadeProcess(12)
    ran, _ = sample(said(process, pointer=STACK + 0x2100), process)
    assert len(ran.copies[0]) == STACK_BYTES


def test_end_of_a_stack_whose_mapping_was_parted_is_looked_for_again() -> None:
    process = MadeProcess(12)
    process.stack_end = STACK + 0x1000
    told = said(process)
    for _ in range(63):
        process.sample(told)
    ran, _ = sample(told, process)
    assert len(ran.copies[0]) == STACK_BYTES


@pytest.mark.parametrize("there", [STACK_BYTES, 0x9000, 0x1800])
def test_stack_is_copied_while_the_list_of_mappings_is_locked(there: int) -> None:
    process = MadeProcess(12)
    process.sp = STACK + STACK_BYTES - there
    ran, counts = sample(said(process, is_locked=1), process)
    assert len(ran.copies[0]) == min(there, UNKNOWN_STACK) + (RED_ZONE if there < STACK_BYTES else 0)
    assert not ran.record.holes[0]
    assert counts == {LossReason.SAMPLED: 1, LossReason.STACK_END_GUESSED: 1}


def test_pages_that_are_not_in_memory_are_named_and_those_behind_them_are_copied() -> None:
    process = MadeProcess(12)
    told = UserSpace()
    pages = [n for n in range(10) if n not in (2, 3, 7)]
    process.stack[:] = b"".join(bytes([1 + n]) * PAGE for n in range(STACK_BYTES // PAGE))
    told.memory(HEAP, HEAP + 4096, b"")
    for n in range(10):  # adjacent mappings
        told.memory(
            STACK + n * PAGE, STACK + (n + 1) * PAGE, process.at(STACK + n * PAGE)[:PAGE] if n in pages else b""
        )
    told.entry("processes", PID, bytes(8))
    told.entry("threads", PID, (STACK + 10 * PAGE).to_bytes(8, "little"))
    process.sp = STACK + 24
    ran, counts = sample(told, process)
    assert int(ran.record.holes[0]) == 1 << 2 | 1 << 3 | 1 << 7
    assert counts[LossReason.STACK_UNREADABLE] == 1
    copied = ran.copies[0]
    assert len(copied) == 10 * PAGE
    for n in pages:
        assert set(copied[n * PAGE : (n + 1) * PAGE]) == {1 + n}


@pytest.mark.parametrize(
    ("sp", "there", "zone"),
    [
        (PAGE + 8, PAGE, 8),
        (PAGE, PAGE, 0),
        (PAGE + RED_ZONE, PAGE, RED_ZONE),
        (2 * PAGE + 8, PAGE, RED_ZONE),
        (2 * PAGE, PAGE, RED_ZONE),
    ],
)
def test_what_may_be_used_below_the_stack_pointer_is_copied_where_it_is_there(sp: int, there: int, zone: int) -> None:
    process = MadeProcess(12)
    process.stack[:] = bytes(n * 7 & 0xFF for n in range(STACK_BYTES))
    told = UserSpace()
    told.memory(STACK + there, STACK + STACK_BYTES, process.at(STACK + there))
    told.entry("processes", PID, bytes(8))
    told.entry("threads", PID, (STACK + STACK_BYTES).to_bytes(8, "little"))
    process.sp = STACK + sp
    ran, counts = sample(told, process)
    assert int(ran.record.base[0]) == process.sp - zone
    assert ran.copies[0] == process.at(process.sp - zone)
    assert counts == {LossReason.SAMPLED: 1}


def test_sample_without_room_is_counted_and_leaves_nothing() -> None:
    process = MadeProcess(12)
    ran, counts = sample(said(process, ring_bytes=STACK_BYTES), process)
    assert ran.records == []
    assert counts == {LossReason.RING_FULL: 1}


def test_frames_of_the_kernel_are_copied_where_they_are_wanted() -> None:
    process = MadeProcess(12)
    told = said(process, kernel_frames=200)
    told.constant("kernel_stacks", 1)
    ran, _ = sample(told, process)
    assert ran.record.kernel[:, 0].tolist() == [0xFFFF_FFFF_8100_0000 + n for n in range(127)]
    assert len(ran.copies[0]) == STACK_BYTES


def test_reader_is_woken_by_other_code_and_by_a_ring_that_fills_up() -> None:
    process = MadeProcess(12)
    told = said(process, code=5)
    for code in (5, 6, 6):
        told.setting("code", code)
        process.sample(told)
    told.constant("fill", 0)
    process.sample(told)
    samples, _ = told.run()
    woken = [flags for ran in samples for flags, _ in ran.records]
    assert woken == [FORCE_WAKEUP, FORCE_WAKEUP, NO_WAKEUP, FORCE_WAKEUP]


@pytest.mark.parametrize(("everything", "own", "count"), [(0, 0, 0), (1, 0, 1), (1, PID, 0)])
def test_unselected_processes_and_the_profiler_are_left_out(everything: int, own: int, count: int) -> None:
    process = MadeProcess(12)
    told = UserSpace()
    told.memory(STACK, STACK + STACK_BYTES, bytes(STACK_BYTES))
    told.constant("everything", everything)
    told.constant("own_tgid", own)
    process.sample(told)
    (ran,), _ = told.run()
    assert len(ran.records) == count
