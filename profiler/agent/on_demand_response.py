"""Merge of the agent's response into one profile, by the client: the last minutes, and the requested recording."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from pyprof.model.merge import merge
from pyprof.model.profile import Profile
from pyprof.model.sample_filter import of_threads, selected
from pyprof.records import replace

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def joined(kept: Sequence[Profile], asked: Profile, service: str, last_s: float) -> Profile:
    """Merge stored windows and the requested recording of a service into one profile.

    Only samples of the service count that were taken in the last last_s seconds before the requested recording began.

    Args:
        kept: Windows of all services. One may be there twice: unfinished, and finished.
        asked: The requested recording.

    Raises:
        UsageError: The profiles cannot be merged.
    """
    windows: dict[int, Profile] = {}
    for profile in sorted(kept, key=lambda each: each.duration_ns):
        if profile.value_types == asked.value_types:
            windows[profile.start_ns] = profile  # the longest one
    parts = [asked, *_parts(windows.values(), service, asked.start_ns - round(last_s * 1e9), asked.start_ns)]
    starts: dict[tuple[int, int], list[int]] = {}
    return replace(merge([_same_threads(part, starts) for part in parts]), title=service)


def _same_threads(profile: Profile, starts: dict[tuple[int, int], list[int]]) -> Profile:
    """Give threads of several recordings equal start times, so that they count as one.

    Each recording reads a thread's start time with limited accuracy (model/thread_keys.py); times within a tick are
    equal.

    Args:
        starts: Start times so far, by pid and tid.
    """

    def start(pid: int, tid: int, started: int) -> int:
        known = starts.setdefault((pid, tid), [])
        found = next((each for each in known if abs(each - started) <= _TICK_NS), None)
        if found is None:
            known.append(started)
        return started if found is None else found

    threads = [
        replace(
            each,
            started=start(each.pid, each.tid, each.started),
            process_started=start(each.pid, each.pid, each.process_started),
        )
        for each in profile.threads
    ]
    return replace(profile, threads=tuple(threads))


def _parts(windows: Iterable[Profile], service: str, first: int, last: int) -> Iterator[Profile]:
    for profile in windows:
        start, end = max(profile.start_ns, first), min(profile.start_ns + profile.duration_ns, last)
        if start < end:
            mine = of_threads(profile, lambda thread: ("service", service) in thread.labels)
            within = (profile.time_ns >= start) & (profile.time_ns < end)
            yield replace(selected(profile, mine & within), start_ns=start, duration_ns=end - start)
