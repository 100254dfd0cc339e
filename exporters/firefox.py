"""Firefox Profiler's JSON (github firefox-devtools/profiler, src/types/profile.ts), gzipped. It is the processed
format; profiler.firefox.com upgrades older versions of it when it opens them.

Each thread is a track below its process. Times are milliseconds since the recording began, with nanosecond resolution.
A sample's weight is the primary value. A wait is a marker from the first to the last of consecutive samples that have
the same wait on the same stack; nothing was recorded between them. If times are not known, the samples of a thread
follow one another in the file's order, and the profile says so.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.begin_end_times import (
    I64,
    IN_SEQUENCE,
    has_times,
    origin_ns,
    place_in_sequence,
    sample_ends,
    sample_lengths,
)
from pyprof.exporters.display_names import labelled_name
from pyprof.exporters.firefox_tables import CATEGORIES, WAITING, SharedTables, wait_of
from pyprof.exporters.utf8 import dump_json
from pyprof.model.columns import distinct
from pyprof.model.profile import Profile, ThreadInfo

VERSION = 60
_BROWSER_VERSION = 32
"""Version of the Firefox profile format that browsers write; this file is not in that format."""
_MS = 1_000_000
_WEIGHTS = {"nanoseconds": "tracing-ms", "bytes": "bytes"}
_NOT_ONE_WAIT = "waits too short or too many for stacks"
"""Text of the Firefox profile in place of a system call, for samples that sum up many waits."""
_INTERVAL = 1
"""Phase of a Firefox profile's marker that has a beginning and an end."""
_WAIT_SCHEMA = {
    "name": "Wait",
    "display": ["marker-chart", "marker-table", "timeline-overview"],
    "chartLabel": "{marker.data.state} {marker.data.call}",
    "tooltipLabel": "{marker.data.state} {marker.data.call}",
    "tableLabel": "{marker.data.state} {marker.data.call}",
    "fields": [
        {"key": "state", "label": "State", "format": "string"},
        {"key": "call", "label": "System call", "format": "string"},
    ],
}


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    """Write a profile as Firefox Profiler's JSON; each thread is a track, regardless of the options."""
    every = np.arange(len(profile.stack))
    notes = [] if has_times(profile, every) else [IN_SEQUENCE]
    profile = place_in_sequence(profile) if notes else profile
    tables = SharedTables(profile, options, distinct(profile.stack).tolist())
    # no file name and no time in the header, so that equal profiles give equal bytes
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0) as packed:
        packed.write(b'{"meta":' + dump_json(_meta(profile, [*notes, *profile.summary.notes])))
        packed.write(b',"libs":' + dump_json(tables.libs()) + b',"threads":[')
        for nth, thread in enumerate(_threads(profile, tables)):
            packed.write(b",\n" if nth else b"\n")
            packed.write(dump_json(thread))
        packed.write(b'],\n"shared":' + dump_json(tables.shared()) + b"}\n")


def _meta(profile: Profile, notes: list[str]) -> dict[str, object]:
    origin = origin_ns(profile)
    begin = (profile.start_ns - origin) / _MS
    about = [{"label": "Note", "format": "string", "value": note} for note in notes]
    about += [{"label": name, "format": "string", "value": value} for name, value in profile.labels.items()]
    return {
        "product": profile.title or "pyprof",
        "importedFrom": "pyprof",
        "version": _BROWSER_VERSION,
        "preprocessedProfileVersion": VERSION,
        "interval": profile.period_ns / _MS or 1,
        "startTime": origin / _MS,
        "profilingStartTime": begin,
        "profilingEndTime": begin + profile.duration_ns / _MS,
        "processType": 0,
        "stackwalk": 1,
        "symbolicated": True,
        "usesOnlyOneStackType": True,
        "sourceCodeIsNotOnSearchfox": True,
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "categories": [{"name": n, "color": c, "subcategories": list(s)} for n, c, s in CATEGORIES],
        "markerSchema": [_WAIT_SCHEMA],
        "extra": [{"label": "Recording", "entries": about}] if about else [],
    }


def _threads(profile: Profile, tables: SharedTables) -> Iterator[dict[str, object]]:
    """Yield the JSON of each thread; there is at least one, because the profiler refuses a profile without threads."""
    threads = profile.threads or (ThreadInfo(0, 0, "no samples", ""),)
    order = np.lexsort((profile.time_ns, profile.thread))
    borders = np.searchsorted(profile.thread[order], np.arange(1, len(threads)))
    samples_of = np.split(order, borders)
    for thread, (pid, tid), samples in zip(threads, _numbers(threads), samples_of, strict=True):
        markers = _waits(profile, tables, samples)
        yield {
            "name": labelled_name(profile, thread) or "thread",
            "processName": thread.process or "process",
            "processType": "default",
            "isMainThread": thread.pid == thread.tid,
            "pid": pid,
            "tid": tid,
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": 0,
            "unregisterTime": None,
            "pausedRanges": [],
            "showMarkersInTimeline": bool(markers["length"]),
            "samples": _samples(profile, tables, samples),
            "markers": markers,
        }


def _numbers(threads: tuple[ThreadInfo, ...]) -> Iterator[tuple[str, int | str]]:
    """Yield (pid, tid) of each thread as Firefox Profiler groups them. A reused number gets a suffix: "100.1"."""
    processes: dict[int, dict[object, int]] = {}
    used: dict[tuple[int, int], int] = {}
    for thread in threads:
        of_pid = processes.setdefault(thread.pid, {})
        process = of_pid.setdefault(thread.process_key, len(of_pid))
        nth = used[thread.pid, thread.tid] = used.get((thread.pid, thread.tid), -1) + 1
        yield (
            f"{thread.pid}.{process}" if process else str(thread.pid),
            f"{thread.tid}.{nth}" if nth else thread.tid,
        )


def _samples(profile: Profile, tables: SharedTables, samples: I64) -> dict[str, object]:
    """Return the Firefox profile's table of a thread's samples.

    threadCPUDelta is the CPU time before a sample; the profiler draws from it how busy the thread was.
    """
    primary = profile.value_types[-1]
    weight = profile.values[samples, -1]
    shown = weight / _MS if primary.unit == "nanoseconds" else weight
    found: dict[str, object] = {
        "length": len(samples),
        "stack": [tables.place[leaf] for leaf in profile.stack[samples].tolist()],
        "time": ((profile.time_ns[samples] - origin_ns(profile)) / _MS).tolist(),
        "weight": shown.tolist(),
        "weightType": _WEIGHTS.get(primary.unit, "samples"),
    }
    if (primary.type, primary.unit) == ("cpu", "nanoseconds"):
        found["threadCPUDelta"] = np.maximum(weight, 0).tolist()
    return found


def _waits(profile: Profile, tables: SharedTables, samples: I64) -> dict[str, object]:
    """Return the Firefox profile's table of a thread's wait markers. Consecutive waits with the same stack are one
    marker.
    """
    time_ns = profile.time_ns[samples]
    until = sample_ends(time_ns, np.maximum(sample_lengths(profile, samples), 0), profile.period_ns)
    frame_of = profile.frame
    merged: list[tuple[int, int, int]] = []
    for leaf, begin, end in zip(profile.stack[samples].tolist(), time_ns.tolist(), until.tolist(), strict=True):
        last = merged[-1] if merged else (-1, 0, -1)
        if last[0] == leaf and last[2] == begin:
            begin = merged.pop()[1]
        merged.append((leaf, begin, end))
    rows = []
    for leaf, begin, end in merged:
        wait = wait_of(profile.frames[frame_of[leaf]]) if leaf else None
        if wait and wait[1] != _NOT_ONE_WAIT:
            data = {"type": "Wait", "state": wait[0], "call": wait[1], "cause": {"stack": tables.place[leaf]}}
            rows.append((begin, end, tables.string(wait[0]), data))
    origin = origin_ns(profile)
    return {
        "length": len(rows),
        "name": [name for _, _, name, _ in rows],
        "startTime": [(begin - origin) / _MS for begin, _, _, _ in rows],
        "endTime": [(end - origin) / _MS for _, end, _, _ in rows],
        "phase": [_INTERVAL] * len(rows),
        "category": [WAITING] * len(rows),
        "data": [data for _, _, _, data in rows],
    }
