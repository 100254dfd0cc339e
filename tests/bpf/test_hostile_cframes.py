"""Tests of the BPF program on CPython 3.11 stacks with corrupt CFrames.

The search for suspended greenlets ends in time.
"""

from __future__ import annotations

import pytest

from pyprof.collectors.bpf.recorded_processes import build_frame_rows
from pyprof.collectors.bpf.ring_buffer_records import PAGE, LossReason
from pyprof.interpreters.cpython.bpf_frame_decoder import MAX_ROWS
from tests.bpf.made_memory import FREE, STACK, STACK_BYTES, MadeProcess
from tests.bpf.test_hostile_memory import MAX_LATE_OF_WAITING, SIZE, code, sampled

pytestmark = pytest.mark.system

OWN, FIRST = STACK + 0x100, STACK + 0x400
"""Addresses of the thread's CFrame, and of the first CFrame of a suspended greenlet."""
NO_HEIGHT = 0xFFFF_FFFF
MAX_CFRAMES = 32
"""Maximum number of CFrames that the program follows, as in sampler.h."""


def switched(apart: int, count: int) -> MadeProcess:
    """Return a thread with one running function and a chain of this many CFrames outside of it."""
    process = MadeProcess(11)
    process.innermost(FREE)
    process.frame(FREE, 0, code(process, 0), 1)
    for n in range(count):
        at = FIRST + apart * n
        process.cframe(at, frame_at(n), at + apart if n + 1 < count else root(process))
    return process


def root(process: MadeProcess) -> int:
    return process.thread + process.offsets.root_cframe


def frame_at(n: int) -> int:
    return FREE + SIZE * (1 + n)


def calling(process: MadeProcess, n: int, previous: int, is_entry: int) -> None:
    """Write a frame that calls a C function."""
    process.frame(frame_at(n), previous, code(process, 1 + n), is_entry)
    offsets = process.offsets
    process.put(frame_at(n) + offsets.frame_height, NO_HEIGHT | is_entry << 8 * (offsets.frame_flag & 7))


@pytest.mark.parametrize("apart", [0x18, 0x400])
@pytest.mark.parametrize("count", [1, 3, 600])
def test_search_ends_where_frames_lead_in_circles(apart: int, count: int) -> None:
    cframes = (STACK_BYTES - 0x1000) // apart
    process = switched(apart, cframes)
    for n in range(cframes):
        process.put(FIRST + apart * n + process.offsets.cframe_current, frame_at(n % count))
    for n in range(count):
        calling(process, n, frame_at((n + 1) % count), False)
    found = sampled(process, MAX_LATE_OF_WAITING)
    assert found[0][0].turns > STACK_BYTES // 16, "all of it is searched, two words in a turn"
    assert found[-1][1][LossReason.OVER_BUDGET] > 0


@pytest.mark.parametrize("word", ["root", "own", "itself"])
def test_search_ends_where_each_word_is_the_link_of_a_cframe(word: str) -> None:
    process = switched(0x18, 1)
    for at in range(FIRST, STACK + STACK_BYTES, 8):
        process.put(at, {"root": root(process), "own": OWN, "itself": at}[word])
    found = sampled(process, MAX_LATE_OF_WAITING)
    assert found[0][0].turns > STACK_BYTES // 16
    assert not found[0][0].record.waiting[0]


@pytest.mark.parametrize("length", [1, 40, 250])
def test_rows_of_what_waits_are_taken_in_time(length: int) -> None:
    """Read valid evaluator calls of maximum length in which each frame has a different function."""
    count = min((MAX_ROWS - 1) // length, MAX_CFRAMES)
    process = switched(0x400, count)
    for run in range(count):
        first = run * length
        process.put(FIRST + 0x400 * run + process.offsets.cframe_current, frame_at(first))
        for n in range(first, first + length):
            last = n + 1 == count * length
            calling(process, n, 0 if last else frame_at(n + 1), n + 1 == first + length)
    found = sampled(process, MAX_LATE_OF_WAITING)
    record = found[0][0].record
    assert int(record.waiting[0]) == count * length
    assert found[-1][1][LossReason.OVER_BUDGET] > 0
    addresses = record.frames[1:, 0].tolist()
    runs = [addresses[at : at + length] for at in range(0, len(addresses), length)]
    assert runs == [[frame_at(run * length + n) for n in range(length)] for run in reversed(range(count))]
    links = [int(word) for word in record.frames[1:, 3]]
    outer = {address: word >> 8 & ~7 for address, word in zip(addresses, links, strict=True)}
    assert outer == {frame_at(n): 0 if n + 1 == count * length else frame_at(n + 1) for n in range(count * length)}
    assert sum(word & 0xFF for word in links) == count
    assert all(word & 1 << 8 for word in links)


@pytest.mark.parametrize(("to_root", "flag", "found"), [(True, 1, 0), (False, 1, 1), (False, 0xFD, 0)])
def test_cframe_with_which_a_greenlet_begins_or_ends_names_no_frame(to_root: bool, flag: int, found: int) -> None:
    """Sample a greenlet at its start or end, where its CFrame leads to the root or, in a new evaluator, nowhere yet.

    Args:
        to_root: Whether the thread's CFrame leads to the root CFrame.
        flag: Whether the other frame is an entry frame.
        found: Expected number of frames of the running evaluator.
    """
    process = switched(0x400, 0)
    process.cframe(OWN, FREE, root(process) if to_root else 0)
    process.frame(FREE, frame_at(1), code(process, 0), 1)
    process.cframe(OWN + 0x40, frame_at(0), root(process))
    calling(process, 0, 0, flag)
    (ran, _), *_ = sampled(process)
    assert len(ran.record.frames) - ran.record.waiting[0] == found


def test_page_of_a_stack_that_could_not_be_read_has_no_words() -> None:
    process = switched(0x2000, 1)
    calling(process, 0, 0, True)
    process.absent, process.stack_end = range(STACK + 2 * PAGE, STACK + 3 * PAGE), STACK + STACK_BYTES
    said = process.in_user_space()
    process.sample(said)
    (ran,), _ = said.run()
    record, words = ran.record, ran.words.copy()
    assert int(record.holes[0]) == 1 << 2
    first = int(record.offset[0]) >> 3
    words[first + 2 * PAGE // 8 : first + 3 * PAGE // 8] = root(process)
    copy = build_frame_rows(record, record.texts, words).copies[0]
    assert (copy.state, copy.base) == (process.thread, STACK)
    assert copy.words.nbytes == int(record.size[0]) == STACK_BYTES
    stack = bytes(process.stack)
    assert copy.words.tobytes() == stack[: 2 * PAGE] + bytes(PAGE) + stack[3 * PAGE :]
