"""Tests of unsampled processor time: markers in the profile with their reasons, and notes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyprof.collectors.cpu_time_accounting import Account
from pyprof.model.marker_frames import IN_KERNEL, LATE, LOST, NOT_SAMPLED, Mark
from pyprof.model.profile import ThreadInfo
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.profile_assembly import summarize
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.pipeline.unsampled_time import processor_time, scale_to_accounts, with_unseen
from tests.exporters.profiles import Builder, code
from tests.session.test_views import native, window_of

MS = 1_000_000


def window(account: Account) -> Window:
    """Return a window of ten seconds with one sample."""
    found = replace(window_of([native(1)]), duration_ns=10_000 * MS)
    return replace(found, after=replace(found.after, accounts={7: account}))


def blocks(found: Window) -> dict[Mark | None, int]:
    """Return the milliseconds of each marker."""
    lengths: dict[Mark | None, int] = {}
    for node, length in zip(found.node.tolist()[1:], found.length_ns.tolist()[1:], strict=True):
        (key,) = found.stacks.key(node)
        mark = key.mark
        lengths[mark] = lengths.get(mark, 0) + length
    return {mark: length // MS for mark, length in lengths.items()}


def notes(found: Window) -> tuple[str, ...]:
    """Return the notes in the summary of a profile without markers."""
    builder = Builder()
    builder.sample(builder.node([code("f")]), 0, 1, 1)
    return tuple(note.text for note in summarize(found, builder.build(), Diagnostics(), 99).notes)


def test_each_reason_is_a_block_and_a_sentence() -> None:
    account = Account("a", 1000 * MS, 600 * MS, 300 * MS, kernel_ns=400 * MS, lost_ns=100 * MS)
    found = with_unseen(window(account))
    assert blocks(found) == {NOT_SAMPLED: 200, LOST: 100, IN_KERNEL: 400}
    short, lost, kernel = (note.text for note in processor_time(window(account)).notes)
    assert "0.20 s of 1.00 s of processor time (20 %), by threads or processes that ran too briefly" in short
    assert "0.10 s of 1.00 s of processor time (10 %), whose records were lost" in lost
    assert "0.40 s of 1.00 s of processor time (40 %), in the kernel" in kernel
    assert processor_time(window(account)).late == 0


def test_who_waits_for_processors_does_not_call_short_what_it_was_late_for() -> None:
    account = Account("a", 1000 * MS, 1000 * MS, 300 * MS, lost_ns=100 * MS, waits=True)
    found = with_unseen(window(account))
    assert blocks(found) == {LATE: 600, LOST: 100}
    late, _ = (note.text for note in processor_time(window(account)).notes)
    assert "0.60 s of 1.00 s of processor time (60 %), by threads that ran too briefly, or left their" in late
    assert processor_time(window(account)).not_sampled == 0.7


def test_time_that_is_missing_is_nowhere_in_particular() -> None:
    """Spread the marker over the window. At one moment it would look like more processors than there are."""
    found = with_unseen(window(Account("a", 1000 * MS, 1000 * MS, 300 * MS)))
    times, lengths = found.time_ns[1:], found.length_ns[1:]
    halfway = found.start_ns + found.duration_ns // 2
    assert lengths.sum() == 700 * MS
    assert 300 * MS < lengths[times < halfway].sum() < 400 * MS
    assert lengths.max() < 20 * MS
    assert np.all((times > found.start_ns) & (times < found.start_ns + found.duration_ns))


def test_block_is_of_the_process_whose_other_threads_have_samples() -> None:
    """Mark time of a process whose main thread has no samples.

    With another start time it would be shown as a second process.
    """
    found = window(Account("a", 1000 * MS, 1000 * MS, 300 * MS))
    other = ThreadInfo(7, 8, "worker", "a", started=90, process_started=50)
    numbered = with_unseen(replace(found, threads=(other,)))
    assert {info.tid: info.process_key for info in numbered.threads} == {8: other.process_key, 7: other.process_key}


def test_window_with_all_its_time_is_left_as_it_is() -> None:
    whole = window(Account("a", 1000 * MS, 1000 * MS, 990 * MS))
    assert with_unseen(whole) is whole
    assert processor_time(whole).notes == ()


def test_time_in_missed_sampling_times_is_told_where_it_is_much() -> None:
    """Add a note and no marker, because load of the machine would otherwise change the profile."""
    found = window(Account("a", 1000 * MS, 600 * MS, 600 * MS))
    assert with_unseen(found) is found
    (note,) = notes(found)
    assert "0.40 s of 1.00 s of processor time (40 %)" in note
    assert notes(window(Account("a", 1000 * MS, 950 * MS, 950 * MS))) == ()


def test_who_waits_for_processors_marks_what_was_missed() -> None:
    """Mark time that a starved profiler misses.

    It misses the busy times most, so a profile without them would be wrong.
    """
    account = Account("a", 1000 * MS, 700 * MS, 400 * MS, kernel_ns=100 * MS, waits=True)
    assert blocks(with_unseen(window(account))) == {LATE: 500, IN_KERNEL: 100}
    found = processor_time(window(account))
    assert (found.not_sampled, found.late, found.missed) == (0.6, 0, ())
    assert "0.50 s of 1.00 s of processor time (50 %)" in found.notes[0].text
    all_kept = Account("a", 1000 * MS, 970 * MS, 970 * MS, waits=True)
    assert with_unseen(little := window(all_kept)) is little
    assert processor_time(little).late == 0.03


def test_process_without_samples_among_others_has_all_its_time_in_a_block() -> None:
    """Check that the rows add up to the processor time although the sampler missed most sampling times.

    The samples of a process share the time that was missed of that process. A process without samples has none.
    """
    sampled = Account("a", 1000 * MS, 100 * MS, 100 * MS, pids=frozenset({7}))
    unseen = Account("b", 300 * MS, 30 * MS, 0, kernel_ns=50 * MS)
    brief = Account("c", 30 * MS, 30 * MS, 0)
    idle = Account("d", MS // 2, 0, 0)
    found = window(sampled)
    found = replace(found, after=replace(found.after, accounts={7: sampled, 8: unseen, 9: brief, 10: idle}))
    assert blocks(with_unseen(found)) == {LATE: 250, IN_KERNEL: 50, NOT_SAMPLED: 30}
    time = processor_time(found)
    assert (time.not_sampled, time.late) == (0.33, 0.9)
    later = replace(found, before=found.after)
    assert with_unseen(later) is later


def test_what_samples_stand_for_was_not_missed() -> None:
    """Check that sampled, marked and missed time add up to the spent time.

    The target ran less than usual while the profiler was late.
    """
    found = window(Account("a", 1590 * MS, 930 * MS, 1370 * MS))
    assert with_unseen(found) is found
    assert processor_time(found).late == 0.22
    assert processor_time(window(Account("a", 1000 * MS, 600 * MS, 1010 * MS))).late == 0


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (((-100, 0), (10_100, 1020)), [333, 333, 333]),
        (((0, 0), (10_000, 600)), [200, 200, 200]),
        (((0, 0), (5000, 500)), [250, 250, 10]),
    ],
    ids=["read outside of the window", "read at its borders", "ended before the third sample"],
)
def test_samples_of_a_process_share_its_processor_time(
    readings: tuple[tuple[int, int], ...], expected: list[int]
) -> None:
    """Take three samples in a window of 10 s; readings are (ms since its start, ms of processor time)."""
    found = window_of([native(1)], [native(1)], [native(1)])
    found = replace(found, start_ns=0, epoch_ns=0, duration_ns=10_000 * MS, time_ns=np.array([MS, 2 * MS, 9000 * MS]))
    spent_ns = readings[-1][1] * MS
    in_ns = tuple((at * MS, spent * MS) for at, spent in readings)
    pids = frozenset(key.pid for key in found.keys.values())
    of_process = Account("a", spent_ns, spent_ns, spent_ns, readings=in_ns, pids=pids)
    found = replace(found, after=replace(found.after, accounts={7: of_process}))
    scaled = scale_to_accounts(found, np.array([[1, 10 * MS]] * 3, np.int64))
    assert scaled[:, 0].tolist() == [1, 1, 1]
    assert (scaled[:, 1] / MS).tolist() == pytest.approx(expected, abs=1)
    in_time = found.time_ns <= of_process.readings[-1][0]
    assert scaled[in_time, 1].sum() == pytest.approx(processor_time(found).spent * 1e9, abs=MS)
