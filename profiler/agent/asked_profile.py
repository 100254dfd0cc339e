"""What an asker makes of the agent's answer: the last minutes and the recording that it asked for, as one profile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from pyprof.model.profile import Profile
from pyprof.model.selected import of_threads, selected
from pyprof.model.several import merge
from pyprof.records import replace

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def joined(kept: Sequence[Profile], asked: Profile, service: str, last_s: float) -> Profile:
    """kept: windows of all services, perhaps one twice, as it was under way and as it ended. Of them the service's
    samples count which were taken in the last last_s seconds before the recording that was asked for began. Raises
    UsageError.
    """
    windows: dict[int, Profile] = {}
    for profile in sorted(kept, key=lambda each: each.duration_ns):
        if profile.value_types == asked.value_types:
            windows[profile.start_ns] = profile  # the longest
    parts = [asked, *_parts(windows.values(), service, asked.start_ns - round(last_s * 1e9), asked.start_ns)]
    starts: dict[tuple[int, int], list[int]] = {}
    return replace(merge([_same_threads(part, starts) for part in parts]), title=service)


def _same_threads(profile: Profile, starts: dict[tuple[int, int], list[int]]) -> Profile:
    """Of two recordings each has read when a thread began, as exactly as it could (model/keys.py): within a tick it is
    one thread. starts: by pid and tid, of the threads so far.
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
