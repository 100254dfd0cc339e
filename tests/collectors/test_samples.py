"""Tests of samples of real processes: registers and stack are of the same instant."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pyprof.model.sample_batch import SampleKind
from tests.collectors.conftest import Start
from tests.collectors.targets import Recording, feedback, record, samples, wait_asleep

pytestmark = [pytest.mark.live, pytest.mark.system]

MARK = 0x5CA1AB1E5CA1AB1E


def test_registers_and_stack_of_a_running_thread_are_those_of_one_moment(program: Start) -> None:
    target = program("c_registers")
    lanes = record(target.pid, samples(20), rate_hz=500).lanes
    for lane in lanes:
        assert lane.kind == SampleKind.STOPPED
        assert [lane.regs[name] for name in ("rbx", "rbp", "r12", "r13", "r14", "r15", "rdi")] == [
            digit * 0x1010101010101010 for digit in (1, 2, 3, 4, 5, 6, 7)
        ]
        assert lane.word(lane.regs["rsp"]) == 0x7070707070707070
        assert lane.base == (lane.regs["rsp"] - 128) & ~7
        space = lane.batch.spaces[lane.space]
        module = space.module_at(lane.regs["rip"])
        assert module is not None
        assert module.name == "c_registers"
        assert space.read(lane.regs["rip"], 2) == b"\xeb\xfe"


def test_each_running_thread_is_sampled_and_sleeping_ones_are_not(program: Start) -> None:
    target = program("c_spin", "2")
    recording = record(target.pid, samples(40), rate_hz=200)
    assert {lane.kind for lane in recording.lanes} == {SampleKind.STOPPED}
    assert {lane.tid for lane in recording.lanes} <= {int(p.name) for p in Path(f"/proc/{target.pid}/task").iterdir()}
    assert target.pid not in {lane.tid for lane in recording.lanes}  # the main thread blocks in read(2)
    assert len({lane.tid for lane in recording.lanes}) == 2
    assert target.finish() == "done\n"


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_threads_that_wait_for_processors_have_the_time_in_which_they_had_one(program: Start) -> None:
    threads = 8 * len(os.sched_getaffinity(0))
    target = program("c_spin", str(min(threads, 64)))
    weights: dict[int, int] = {}

    def enough(recording: Recording) -> bool:
        assert recording.stats is not None
        return recording.stats.ticks >= 250

    before = processor_seconds(target.pid)
    recording = record(target.pid, enough, rate_hz=100, stack_size=4096)
    ran = processor_seconds(target.pid) - before
    for lane in recording.lanes:
        weights[lane.tid] = weights.get(lane.tid, 0) + lane.weight
    assert recording.stats is not None
    ticks, skipped = recording.stats.ticks, recording.stats.skipped
    counted = sum(weights.values()) / 100 * (ticks + skipped) / ticks
    assert len(weights) == min(threads, 64)
    assert 0.5 * ran < counted < 2 * ran  # each thread waits 7 of 8 periods


def test_sleepers_are_read_once_from_outside_and_then_known_to_be_unchanged(program: Start) -> None:
    target = program("c_sleepers", "0", "30000000", "futex", "nanosleep", "poll")
    wait_asleep(target.pid)
    recording = record(target.pid, samples(50), rate_hz=200, idle=True)
    assert recording.stats is not None
    assert len(recording.stats.pauses) == 0
    looks = [lane for lane in recording.lanes if lane.batch.source_id]  # others stand for time without a look
    blocked = [lane for lane in looks if lane.kind == SampleKind.BLOCKED]
    unchanged = [lane for lane in looks if lane.kind == SampleKind.UNCHANGED]
    assert len(blocked) == len({lane.tid for lane in blocked}) == 5
    assert len(blocked) + len(unchanged) == len(looks)
    assert (recording.stats.blocked, recording.stats.unchanged) == (len(blocked), len(unchanged))
    for lane in blocked:
        assert lane.regs["rip"]
        assert lane.base <= lane.regs["rsp"] < lane.base + len(lane.stack)
        assert lane.regs["rbx"] == lane.regs["rbp"] == 0
    assert all(lane.stack == b"" for lane in unchanged)
    for lane in blocked:
        sp, pc = Path(f"/proc/{lane.tid}/syscall").read_text().split()[-2:]
        assert (lane.regs["rsp"], lane.regs["rip"]) == (int(sp, 16), int(pc, 16))


def test_samples_of_a_thread_are_in_time_order_and_spread_inside_their_slots(program: Start) -> None:
    target = program("c_registers")
    times = np.array([lane.time_ns for lane in record(target.pid, samples(60), rate_hz=300).lanes])
    steps = np.diff(times)
    assert (steps > 0).all()
    assert steps.std() > 0.02 * 1e9 / 300


def test_a_deep_stack_is_copied_whole_and_later_only_as_far_as_walks_looked(program: Start) -> None:
    target = program("c_stacks", "deep", "5000")
    mark = int(target.ready[0], 16)
    first = record(target.pid, samples(3), rate_hz=200)
    assert all(lane.word(mark) == MARK for lane in first.lanes)
    learned = record(
        target.pid,
        lambda recording: len(recording.lanes) >= 20,
        learn=lambda batch: feedback(batch, top=mark + 8),
        rate_hz=200,
    )
    last = learned.lanes[-1]
    assert last.word(mark) == MARK
    assert last.base + len(last.stack) <= mark + 8 + 4096
    assert len(last.stack) < len(first.lanes[0].stack)


def test_a_copy_that_was_too_short_reaches_the_missing_word_next_time(program: Start) -> None:
    target = program("c_stacks", "deep", "5000")
    mark = int(target.ready[0], 16)
    recording = record(
        target.pid,
        lambda r: any(lane.word(mark) is None for lane in r.lanes) and r.lanes[-1].word(mark) == MARK,
        learn=lambda batch: (
            feedback(batch, top=int(batch.stack.base[0]) + 512)
            if int(batch.stack.base[0]) + int(batch.stack.size[0]) > mark
            else feedback(batch, missing=int(batch.stack.base[0]) + int(batch.stack.size[0]))
        ),
        rate_hz=300,
    )
    assert recording.lanes[0].word(mark) == MARK
    assert any(lane.word(mark) is None for lane in recording.lanes)
    assert recording.lanes[-1].word(mark) == MARK


def test_stack_size_caps_the_copy(program: Start) -> None:
    target = program("c_stacks", "deep", "5000")
    recording = record(target.pid, samples(3), rate_hz=200, stack_size=32768)
    # the copy begins at sp if the red zone is in an unmapped page
    assert {len(lane.stack) for lane in recording.lanes} <= {32768, 32768 - 128}


def test_a_handler_on_its_own_stack_brings_the_stack_that_it_interrupted(program: Start) -> None:
    target = program("c_stacks", "alternate", "100")
    mark = int(target.ready[0], 16)
    # the walk of the first sample requests a word of the interrupted stack, which reveals that stack
    recording = record(
        target.pid,
        lambda r: bool(r.lanes) and r.lanes[-1].word(mark) == MARK,
        learn=lambda batch: feedback(batch, missing=mark),
        rate_hz=300,
    )
    last = recording.lanes[-1]
    assert last.word(mark) == MARK
    assert not last.base <= mark < last.base + len(last.stack)
    assert last.pieces


def test_a_batch_is_handed_over_when_its_memory_is_full(program: Start) -> None:
    target = program("c_stacks", "deep", "9000")
    recording = record(target.pid, samples(200), rate_hz=1000, flush_s=60, stack_size=200_000)
    sizes = {id(lane.batch): lane.batch.stack.data.nbytes for lane in recording.lanes}
    assert len(sizes) > 1
    assert max(sizes.values()) <= 64 << 20


def test_a_thread_that_ran_since_is_not_called_unchanged(program: Start) -> None:
    target = program("c_sleepers", "0", "3000", "nanosleep")
    recording = record(target.pid, samples(150), rate_hz=100, idle=True)
    tid = int(target.ready[0])
    fresh = [lane for lane in recording.lanes if lane.tid == tid and lane.kind != SampleKind.UNCHANGED]
    repeated = [lane for lane in recording.lanes if lane.tid == tid and lane.kind == SampleKind.UNCHANGED]
    assert len(fresh) > len(repeated)


def test_a_stack_read_from_outside_is_never_of_two_moments(program: Start) -> None:
    target = program("c_flip")
    recording = record(target.pid, samples(1500), rate_hz=2000, idle=True)
    pairs = {
        (lane.regs["rip"], lane.word(lane.regs["rsp"])) for lane in recording.lanes if lane.kind == SampleKind.BLOCKED
    }
    naps = {pair for pair in pairs if pair[1] in (0x0A0A0A0A0A0A0A0A, 0x0B0B0B0B0B0B0B0B)}
    assert {word for _, word in naps} == {0x0A0A0A0A0A0A0A0A, 0x0B0B0B0B0B0B0B0B}
    assert len({pc for pc, _ in naps}) == len(naps) == 2
