"""Tests of what the BPF program copies of a Go program: the stack and the labels of a goroutine."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pyprof.collectors.bpf import ring_buffer_records
from pyprof.collectors.bpf.ring_buffer_records import MOST_STACK
from pyprof.collectors.bpf.samples_from_ring import read_labels
from pyprof.model.thread_identity import Labels
from tests.bpf.made_memory import FREE, HEAP, HEAP_BYTES, STACK, STACK_BYTES, MadeProcess
from tests.bpf.user_space import RED_ZONE, Ran, UserSpace

pytestmark = pytest.mark.system

M, CURG, G0, GSIGNAL, SCHED = 48, 192, 0, 80, 56
POINTER, CURRENT, MACHINE = FREE + 0x1000, FREE + 0x2000, FREE + 0x3000
GOROUTINE, SCHEDULER, HANDLER = FREE + 0x4000, FREE + 0x5000, FREE + 0x6000
LOW, HIGH = FREE + 0x10000, FREE + 0x12000
"""Bounds of the goroutine's stack."""
G0_LOW, G0_HIGH = STACK + 0x1000, STACK + 0x5000
SIGNAL_LOW, SIGNAL_HIGH = STACK + 0x8000, STACK + 0x10000


def go_process(sp: int, saved: int = LOW + 0x1800) -> MadeProcess:
    process = MadeProcess(12)
    process.heap[FREE - HEAP :] = bytes(n * 7 & 0x7F for n in range(HEAP + HEAP_BYTES - FREE))
    process.goroutines = (-8, M, G0, GSIGNAL, CURG, SCHED, 0)
    process.sp = sp
    words = {
        POINTER: 0,
        POINTER - 8: CURRENT,
        CURRENT + M: MACHINE,
        MACHINE + CURG: GOROUTINE,
        MACHINE + G0: SCHEDULER,
        MACHINE + GSIGNAL: HANDLER,
        SCHEDULER + M: MACHINE,
        GOROUTINE + M: MACHINE,
        GOROUTINE: LOW,
        GOROUTINE + 8: HIGH,
        GOROUTINE + SCHED: saved,
        SCHEDULER: G0_LOW,
        SCHEDULER + 8: G0_HIGH,
        HANDLER: SIGNAL_LOW,
        HANDLER + 8: SIGNAL_HIGH,
    }
    for address, value in words.items():
        process.put(address, value)
    return process


def sampled(process: MadeProcess, told: UserSpace | None = None) -> Ran:
    told = told or process.in_user_space()
    told.setting("pointer", POINTER)
    process.sample(told)
    samples, _ = told.run()
    return samples[-1]


def test_stack_of_a_goroutine_is_copied_to_its_end() -> None:
    process = go_process(LOW + 0x1000)
    ran = sampled(process)
    assert ran.three_copies == (process.at(LOW + 0x1000 - RED_ZONE)[: RED_ZONE + 0x1000], b"", b"")
    assert int(ran.record.goroutine[0]) == GOROUTINE


@pytest.mark.parametrize("saved", [LOW + 0x1800, LOW])
def test_goroutine_that_its_thread_has_left_is_copied_from_its_saved_stack_pointer(saved: int) -> None:
    process = go_process(G0_LOW + 0x2000, saved)
    ran = sampled(process)
    stack, below, goroutine = ran.three_copies
    assert stack == process.at(process.sp - RED_ZONE)[: RED_ZONE + 0x2000]
    assert below == b""
    assert goroutine == process.at(saved)[: HIGH - saved]
    assert ran.record.goroutine_head[0].tobytes() == process.at(GOROUTINE)[:160]


@pytest.mark.parametrize("saved", [0, LOW - 8, HIGH + 8, (1 << 64) - 1])
def test_saved_stack_pointer_outside_of_the_goroutine_copies_nothing_of_it(saved: int) -> None:
    ran = sampled(go_process(G0_LOW + 0x2000, saved))
    assert ran.three_copies[2] == b""


def test_handler_on_its_own_stack_copies_what_it_interrupted() -> None:
    process = go_process(SIGNAL_LOW + 0x7000, saved=LOW + 0x1F00)
    process.put(process.sp + 0x100, LOW + 0x1000)
    process.put(process.sp + 0x108, G0_LOW + 0x3000)
    ran = sampled(process)
    stack, below, goroutine = ran.three_copies
    assert stack == process.at(process.sp - RED_ZONE)[: RED_ZONE + 0x1000]
    assert below == process.at(G0_LOW + 0x3000)[:0x1000]
    assert goroutine == process.at(LOW + 0x1000)[:0x1000]


def test_thread_without_a_goroutine_has_the_stack_of_its_scheduler() -> None:
    process = go_process(G0_LOW + 0x2000)
    process.put(MACHINE + CURG, 0)
    ran = sampled(process)
    assert int(ran.record.goroutine[0]) == 0
    assert len(ran.three_copies[0]) == RED_ZONE + 0x2000


@pytest.mark.parametrize("seed", range(20))
def test_forged_goroutines_are_copied_within_bounds(seed: int) -> None:
    chance = np.random.default_rng(seed)
    odd = (0, 1, LOW, HIGH, STACK, STACK + STACK_BYTES, GOROUTINE, MACHINE, POINTER, (1 << 64) - 8, 1 << 63)
    process = go_process(int(chance.choice((G0_LOW, SIGNAL_LOW, LOW, STACK))) + 0x800)
    for address in (POINTER - 8, CURRENT + M, MACHINE + CURG, GOROUTINE, GOROUTINE + 8, GOROUTINE + SCHED, HANDLER + 8):
        if chance.random() < 0.5:
            process.put(address, odd[int(chance.integers(len(odd)))])
    ran = sampled(process)
    assert all(len(copy) <= MOST_STACK + RED_ZONE for copy in ran.three_copies)
    assert struct.unpack_from("<Q", process.at(POINTER)) == (0,)


@pytest.mark.parametrize("place", [SCHEDULER + M, GOROUTINE + M])
def test_program_that_is_not_the_known_go_program_has_no_goroutine(place: int) -> None:
    process = go_process(G0_LOW + 0x2000)
    process.put(place, MACHINE + 8)
    ran = sampled(process)
    assert (int(ran.record.goroutine[0]), ran.three_copies[2]) == (0, b"")


def test_program_of_which_nothing_is_known_yet_is_tried_as_the_latest_go_program() -> None:
    process = go_process(G0_LOW + 0x2000)
    offsets, process.goroutines = process.goroutines, (0,) * 7
    told = process.in_user_space()
    told.entry("processes", 0, ring_buffer_records.PROCESS.pack(*(0,) * 5, *offsets))
    ran = sampled(process, told)
    assert int(ran.record.goroutine[0]) == GOROUTINE


LABELS, LABELS_AT, TABLE, TEXT = 344, FREE + 0x7000, FREE + 0x7100, FREE + 0x8000
"""Offset in a goroutine of the address of its labels, and where they are."""


def with_labels(labels: dict[str, str], form: str) -> MadeProcess:
    """Return a Go program whose goroutine has labels in the form of Go 1.23 ("map") or 1.24 ("slice")."""
    process = go_process(LOW + 0x1000)
    process.runtime = 0
    process.goroutines = (*process.goroutines[:-1], LABELS)
    process.put(GOROUTINE + LABELS, LABELS_AT)
    if form == "slice":
        names, values, step = TABLE, TABLE + 16, 32
        head = {LABELS_AT: TABLE, LABELS_AT + 8: len(labels), LABELS_AT + 16: len(labels) + 1}
    else:
        names, values, step = TABLE + 0x108, TABLE + 0x108 + 8 * 16, 16
        head = {LABELS_AT: TABLE, TABLE: len(labels), TABLE + 8: 0x1234 << 32, TABLE + 16: TABLE + 0x100}
    for address, value in head.items():
        process.put(address, value)
    text = TEXT
    for at, pair in enumerate(labels.items()):
        for place, word in zip((names, values), pair, strict=True):
            data = word.encode()
            process.put(place + at * step, text)
            process.put(place + at * step + 8, len(data))
            process.heap[text - HEAP : text - HEAP + len(data)] = data
            text += len(data) + 3
    return process


def labels_of(ran: Ran) -> Labels | None:
    """Return the labels of the only record, None if some could not be read."""
    flags = int(ran.record.flags[0])
    return (
        None
        if flags & ring_buffer_records.Flag.UNLABELED
        else read_labels(ran.record, 0)
        if flags & ring_buffer_records.Flag.LABELS
        else ()
    )


@pytest.mark.parametrize("form", ["map", "slice"])
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_labels_of_a_goroutine_are_in_the_record(form: str, count: int) -> None:
    labels = {f"name{n}": f"/value/{n}" * (n + 1) for n in range(count)}
    assert labels_of(sampled(with_labels(labels, form))) == tuple(labels.items())


@pytest.mark.parametrize("form", ["map", "slice"])
def test_long_names_and_values_of_labels_are_cut(form: str) -> None:
    ran = sampled(with_labels({"n" * 100: "v" * 400}, form))
    assert labels_of(ran) == (("n" * 64, "v" * 176),)


@pytest.mark.parametrize("form", ["map", "slice"])
def test_more_labels_than_a_record_holds_are_reported(form: str) -> None:
    assert labels_of(sampled(with_labels({f"n{n}": "v" for n in range(9)}, form))) is None


@pytest.mark.parametrize("address", [LABELS_AT, TABLE, TABLE + 16, TABLE + 0x108])
@pytest.mark.parametrize("value", [1, (1 << 64) - 8, 1 << 63])
def test_forged_labels_are_read_within_bounds(address: int, value: int) -> None:
    process = with_labels({"a": "b", "c": "d"}, "map")
    process.put(address, value)
    ran = sampled(process)
    assert ran.calls < 200
    assert labels_of(ran) in (None, (), (("a", "b"),), (("a", "b"), ("c", "d")))


def test_labels_of_a_program_that_is_not_recorded_yet_are_not_read() -> None:
    process = with_labels({"a": "b"}, "map")
    offsets, process.goroutines = process.goroutines, (0,) * 7
    told = process.in_user_space()
    told.entry("processes", 0, ring_buffer_records.PROCESS.pack(*(0,) * 5, *offsets))
    assert labels_of(sampled(process, told)) == ()
