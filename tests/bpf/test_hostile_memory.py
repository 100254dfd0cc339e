"""Tests of the BPF program on corrupt memory: circular links, entry marks everywhere, and random words.

Each run ends soon after its time limit, counted in helper calls. The program is built with sanitizers, which detect
accesses out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.bpf.ring_buffer_records import Flag, LossReason
from pyprof.interpreters.cpython.bpf_frame_decoder import MAX_ROWS
from tests.bpf.made_memory import ENTRY, FREE, HEAP, HEAP_BYTES, MARK, MINORS, STACK, STACK_BYTES, MadeProcess
from tests.bpf.user_space import MOST_RUN_NS, RED_ZONE, Ran, counted
from tests.support import pairs

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

STEPS = (1, 30, 300, 1_000, 3_000, 30_000, 300_000)
"""Simulated duration of a helper call in nanoseconds, so that the time limit comes late or early."""
PLACES = 16
"""Number of points within a run at which the time limit is tested."""
MAX_LATE = 1_000
"""Maximum number of helper calls and loop iterations after the time limit."""
MAX_LATE_OF_WAITING = 2_500
"""Maximum number of helper calls and loop iterations after the time limit with suspended greenlets.

The program completes the rows of one evaluator call, including the texts of each function.
"""
EACH = pytest.mark.parametrize("minor", MINORS)
SEEKING = pytest.mark.parametrize("minor", [12, 13])
CODES = HEAP + 0x60000
SIZE = 0x80
"""Distance between frames in bytes."""
SIGNAL_STACK = 16 << 10
"""Number of bytes of a second stack that the program searches."""
NOWHERE = 0x1000
Sampled = tuple[Ran, dict[LossReason, int]]
"""A sample, and the counters at its end."""


def run(process: MadeProcess, steps: Sequence[int], most_late: int = MAX_LATE) -> list[Sampled]:
    """Sample once at each step duration, check the limits, and return each sample with its counters.

    No code object's text is marked as sent before a sample.
    """
    said = process.in_user_space()
    for step in steps:
        said.setting("step", step)
        said.entry("sent_codes", 0, b"")
        process.sample(said)
        said.dump("counters")
    samples, dumps = said.run()
    assert len(samples) == len(steps)
    for step, ran in zip(steps, samples, strict=True):
        assert ran.late <= most_late
        assert ran.calls <= MOST_RUN_NS // step + most_late
        assert len(ran.record.frames) <= MAX_ROWS
        stack, below = ran.copies
        base = int(ran.record.base[0])
        assert process.at(base).startswith(stack)
        assert 0 <= (process.sp & ~7) - base <= RED_ZONE
        assert not below or process.at(int(ran.record.below_base[0])).startswith(below)
    return [(ran, counted(dump)) for ran, dump in zip(samples, dumps, strict=True)]


def sampled(process: MadeProcess, most_late: int = MAX_LATE) -> list[Sampled]:
    """Sample once without a time limit, and then with the limit at each of several points."""
    whole = run(process, [1], most_late)
    calls = whole[0][0].calls
    steps = [MOST_RUN_NS // (1 + calls * place // PLACES) for place in range(PLACES)]
    return whole + run(process, steps[::-1], most_late)


def code(process: MadeProcess, number: int) -> int:
    """Write a code object whose texts lie at the end of memory, so that each is read twice. Return its address."""
    offsets, at = process.offsets, CODES + 0x100 * number
    for word in range(offsets.code_words):
        process.put(at + offsets.code_head + 8 * word, HEAP + HEAP_BYTES - 16)
    process.put(at + offsets.code_head, number)
    return at


def ring(process: MadeProcess, count: int, flag: int = 0) -> int:
    """Write a circle of frames with different functions. Return the address of the first one."""
    for n in range(count):
        process.frame(FREE + SIZE * n, FREE + SIZE * ((n + 1) % count), code(process, n), flag)
    return FREE


@EACH
@pytest.mark.parametrize("count", [2, 31, 1023, 1600])
def test_frames_in_a_circle_are_followed_as_far_as_a_record_goes(minor: int, count: int) -> None:
    process = MadeProcess(minor)
    process.innermost(ring(process, count))
    found = sampled(process)
    assert len(found[0][0].record.frames) == MAX_ROWS
    assert found[0][1][LossReason.TOO_MANY_FRAMES] == 1
    assert found[-1][1][LossReason.OVER_BUDGET] >= 2
    for ran, _ in found:
        assert ran.record.flags[0] & Flag.BROKEN


@EACH
def test_frame_that_leads_to_itself_is_the_last_one(minor: int) -> None:
    process = MadeProcess(minor)
    process.innermost(ring(process, 1, ENTRY))
    (first, counts), *_ = sampled(process)
    assert len(first.record.frames) == (minor not in (11, 12)), "a CFrame outside of it names no such frame"
    assert LossReason.FRAME_UNREADABLE not in counts


@pytest.mark.parametrize("minor", [10, 11, 12])
@pytest.mark.parametrize("flag", [0, 1])
def test_cframes_in_a_circle_are_followed_as_far_as_a_record_goes(minor: int, flag: int) -> None:
    process = MadeProcess(minor)
    frames = ring(process, 40, flag)
    for n in range(100):
        process.cframe(STACK + 0x400 + 0x40 * n, frames + SIZE * (n % 40), STACK + 0x400 + 0x40 * ((n + 1) % 100))
    process.innermost(frames, STACK + 0x400)
    found = sampled(process)
    assert len(found[0][0].record.anchors) == MAX_ROWS
    assert found[0][0].record.flags[0] & Flag.BROKEN


@pytest.mark.parametrize("minor", [11, 12])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_words_that_look_like_cframes_are_tried_in_time(minor: int, count: int) -> None:
    """Fill the stack with CFrame lookalikes while the thread's own CFrame is empty, as in a starting evaluator."""
    process = MadeProcess(minor)
    for n in range(STACK_BYTES // 16):
        process.put(STACK + 16 * n, STACK + 0x8000 + 32 * (n % 512))
        process.put(STACK + 16 * n + 8, FREE + SIZE * (n % count))
    if minor == 12:
        process.stack = process.stack[8:] + process.stack[:8]
    process.innermost(ring(process, count), STACK + 0x400)
    for n in range(count):
        process.calls(FREE + SIZE * n)
    process.cframe(STACK + 0x400, 0, 0)
    found = sampled(process)
    assert found[0][0].turns > SIGNAL_STACK // 8


@EACH
@pytest.mark.parametrize("refers", [HEAP + 8, STACK + 8, STACK + STACK_BYTES - 8, 0])
def test_words_that_refer_to_another_stack_are_looked_through_in_time(minor: int, refers: int) -> None:
    process = MadeProcess(minor)
    process.sp, process.stack_end = HEAP + 0x40000, STACK + STACK_BYTES
    for at in range(process.sp, process.sp + SIGNAL_STACK, 8):
        process.put(at, refers)
    found = sampled(process)
    record = found[0][0].record
    assert (int(record.below_base[0]) == refers) == (refers >= STACK)
    if refers >= STACK:
        assert int(record.below_size[0]) == process.stack_end - refers
    assert found[0][0].turns > SIGNAL_STACK // 8


@pytest.mark.parametrize("minor", [11, 12])
@pytest.mark.parametrize("length", [40, 400, 1000])
def test_frames_for_which_there_is_no_time_are_the_outer_ones(minor: int, length: int) -> None:
    process = MadeProcess(minor)
    outer = FREE + SIZE * 1200
    for n in range(length):
        process.frame(FREE + SIZE * n, FREE + SIZE * (n + 1) if n + 1 < length else outer, code(process, n))
    process.frame(FREE + SIZE * (length - 1), outer, code(process, length), ENTRY)
    process.frame(outer, 0, code(process, 0), ENTRY)
    process.innermost(FREE, STACK + 0x200)
    process.cframe(STACK + 0x200, FREE, STACK + 0x400)
    process.cframe(STACK + 0x400, outer, 0)
    found = sampled(process)
    assert len(found[0][0].record.frames) == length + 1
    for ran, _ in found:
        count = len(ran.record.frames)
        assert bool(ran.record.flags[0] & Flag.BROKEN) == (count <= length)
        addresses = [*(FREE + SIZE * n for n in range(length)), outer][:count]
        assert ran.record.frames[:, 0].tolist() == addresses


@EACH
@pytest.mark.parametrize("of", ["threads", "interpreters"])
def test_lists_in_a_circle_that_lack_the_thread_end(minor: int, of: str) -> None:
    process = MadeProcess(minor)
    offsets = process.offsets
    process.put(process.thread + offsets.thread_id, 0)
    process.put(process.thread + max(offsets.native_id, 0), 0)
    if of == "threads":
        process.put(process.thread + offsets.thread_next, FREE)
        process.put(FREE + offsets.thread_next, process.thread)
    else:
        process.put(process.interpreter + offsets.interpreter_next, process.interpreter)
    for ran, counts in sampled(process):
        assert not ran.record.flags[0] & Flag.CHAIN
        assert counts[LossReason.NO_THREAD_STATE] == counts[LossReason.SAMPLED]


@EACH
@pytest.mark.parametrize("at", [NOWHERE, HEAP + HEAP_BYTES - 8, (1 << 64) - 8, 1 << 63, 1])
def test_frame_that_cannot_be_read_breaks_the_chain(minor: int, at: int) -> None:
    process = MadeProcess(minor)
    process.frame(FREE, at, code(process, 1))
    process.innermost(FREE)
    ran, counts = sampled(process)[0]
    assert len(ran.record.frames) == 1
    assert ran.record.flags[0] & Flag.BROKEN
    assert counts[LossReason.FRAME_UNREADABLE] == 1


@EACH
@pytest.mark.parametrize("by", range(1, 8))
def test_frames_at_odd_addresses_are_read_or_left(minor: int, by: int) -> None:
    process = MadeProcess(minor)
    for n in range(60):
        process.frame(FREE + SIZE * n + by, FREE + SIZE * (n + 1) + by, code(process, n))
    process.frame(FREE + SIZE * 60 + by, 0, code(process, 60), ENTRY)
    process.innermost(FREE + by)
    (ran, _), *_ = sampled(process)
    assert len(ran.record.frames) == 61


def waiting(process: MadeProcess, apart: int, name: Callable[[int], int]) -> None:
    """Write the thread's own frames, and fill the stack outside of them with entry marks and words from name(n)."""
    first = STACK + 0x400
    process.innermost(FREE)
    process.frame(FREE, first, code(process, 0))
    for n in range(0x300 >> 3, STACK_BYTES >> 3):
        process.put(STACK + 8 * n, name(n))
    for at in range(first, STACK + STACK_BYTES - 0x100, apart):
        process.frame(at, name(at >> 3) if at > first else 0, process.mark_code, ENTRY, MARK)


def living(process: MadeProcess, at: int) -> None:
    """Give the frame a frame object, and mark it as calling a C function."""
    offsets = process.offsets
    process.put(at + offsets.frame_object, at)
    process.put(at + offsets.object_frame, at)
    if offsets.frame_height >= 0:
        process.put(at + offsets.frame_height, 0xFFFF_FFFF)


@SEEKING
@pytest.mark.parametrize(("apart", "count"), pairs([0x58, 0x400, 0x2000], [1, 3, 700]))
def test_search_for_what_waits_ends_on_a_stack_of_marks_and_frames_in_circles(
    minor: int, apart: int, count: int
) -> None:
    process = MadeProcess(minor)
    waiting(process, apart, lambda n: FREE + SIZE * (1 + n % count))
    for n in range(count):
        at = FREE + SIZE * (1 + n)
        process.frame(at, FREE + SIZE * (1 + (n + 1) % count), code(process, n))
        living(process, at)
    found = sampled(process)
    assert found[0][0].turns > STACK_BYTES // 16, "all of it is searched, two words in a turn"
    assert found[-1][1][LossReason.OVER_BUDGET] > 0


@SEEKING
@pytest.mark.parametrize("length", [1, 40, 250])
def test_rows_of_what_waits_are_taken_in_time(minor: int, length: int) -> None:
    """Read valid evaluator calls of maximum length in which each frame has a different function."""
    process = MadeProcess(minor)
    count, apart = min(1000 // (length + 1), 30), 0x400
    first = STACK + 0x800
    process.frame(FREE, STACK + 0x400, code(process, 0))
    process.innermost(FREE)
    process.frame(STACK + 0x400, 0, process.mark_code, ENTRY, MARK)
    for run in range(count):
        entry = first + apart * run
        process.frame(entry, 0, process.mark_code, ENTRY, MARK)
        for n in range(length):
            at = FREE + SIZE * (1 + run * length + n)
            process.frame(at, at + SIZE if n + 1 < length else entry, code(process, 1 + run * length + n))
            living(process, at)
        process.put(entry - 0x40, FREE + SIZE * (1 + run * length))
    found = sampled(process, MAX_LATE_OF_WAITING)
    assert int(found[0][0].record.waiting[0]) == count * (length + 1)
    assert found[-1][1][LossReason.OVER_BUDGET] > 0


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(MINORS), st.integers(0, 1 << 32), st.sampled_from([0.3, 0.8, 0.95, 1.0]), st.data())
def test_nonsense_ends_and_nothing_is_out_of_bounds(minor: int, seed: int, density: float, data: st.DataObject) -> None:
    process = MadeProcess(minor)
    process.scatter(seed, density)
    process.sp = STACK + 8 * data.draw(st.integers(0, 1 << 12))
    frame = data.draw(st.sampled_from([FREE, FREE + 4, STACK + 0x400, NOWHERE])) + 8 * data.draw(st.integers(0, 200))
    process.innermost(frame, data.draw(st.sampled_from([0, STACK + 0x100, FREE + 0x100, NOWHERE])))
    run(process, STEPS)
