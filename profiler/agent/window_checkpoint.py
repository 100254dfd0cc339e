"""Checkpoints of an unfinished window: its parts, as the worker sent them, with the rules' labels of their processes.

They become segments only if the agent was killed, so they are stored without being parsed. Each has the on-CPU time of
the processes by the kernel's clocks: the sums of a recovered window are exact up to its last checkpoint.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyprof.agent.clock_scaling import with_exact_sums
from pyprof.agent.process_clocks import ProcessTime, summed_times
from pyprof.agent.process_table import ProcessLabels
from pyprof.agent.rules import NOT_RECORDED, RuleVerdict
from pyprof.agent.spool import SpoolSegment
from pyprof.agent.window_split import labelled, segments
from pyprof.model.merge import merge
from pyprof.model.profile import Profile
from pyprof.model.reasons import said
from pyprof.objfile.byte_source import open_regular
from pyprof.records import dataclass, replace
from pyprof.session.worker import response_codec
from pyprof.session.worker.message_channel import Part

_BEGINS = b"pyprof part of a window\n"
_MAX_BYTES = 1 << 30


class WindowPart(NamedTuple):
    """The data that an unfinished window got since the previous part.

    Attributes:
        data: See Recording.packed_part().
        times: On-CPU time of each process by the kernel's clocks, None if they are not read.
    """

    data: Sequence[Part]
    times: Sequence[ProcessTime] | None


def packed(part: WindowPart, notes: Sequence[str], labels: Iterable[ProcessLabels]) -> bytes:
    """Encode a checkpoint file of an unfinished window.

    Args:
        part: The part of the window to save.
        notes: Notes for the summary.
        labels: Labels of the processes.
    """
    sets: dict[object, int] = {}
    processes = [(each.pid, each.began_ns, sets.setdefault(each.labels, len(sets))) for each in labels]
    data = b"".join(part.data)
    head = {
        "layout": response_codec.layout(),
        "checksum": zlib.crc32(data),
        "sizes": [memoryview(each).nbytes for each in part.data],
        "times": part.times,
        "notes": list(notes),
        "labels": list(sets),
        "processes": processes,
    }
    return b"".join((_BEGINS, json.dumps(head).encode(), b"\n", data))


@dataclass(frozen=True, slots=True)
class _SavedPart:
    """The contents of a checkpoint file.

    Attributes:
        verdicts: Start times and labels of processes, by pid.
        times: See WindowPart; None also of a file by an older version.
    """

    profile: Profile
    verdicts: Mapping[int, Sequence[tuple[int, RuleVerdict]]]
    times: Sequence[ProcessTime] | None


def _unpacked(data: bytes) -> _SavedPart:
    """Decode a checkpoint file of an unfinished window.

    Raises:
        ValueError: packed() of this version did not make it. Other exceptions are possible if its contents are broken.
    """
    head, _, rest = data.removeprefix(_BEGINS).partition(b"\n")
    if not data.startswith(_BEGINS):
        raise ValueError("no part of a window")
    fields: Mapping[str, Any] = json.loads(head)
    if fields["layout"] != response_codec.layout():
        raise ValueError("by another version")
    parts, at = [], 0
    for size in fields["sizes"]:
        parts.append(memoryview(rest)[at : at + size])
        at += size
    if at != len(rest) or zlib.crc32(rest) != fields["checksum"]:
        raise ValueError("not what was written")
    profile = response_codec.unpacked_profile(parts)
    sets = [tuple((str(key), str(value)) for key, value in each) for each in fields["labels"]]
    verdicts: dict[int, list[tuple[int, RuleVerdict]]] = {}
    for pid, began_ns, of in fields["processes"]:
        verdicts.setdefault(int(pid), []).append((int(began_ns), RuleVerdict(labels=sets[of])))
    times = fields.get("times")
    if times is not None:
        times = [
            ProcessTime(int(pid), int(began), str(name), int(ns), int(unread), int(children), "".join(map(str, kin)))
            for pid, began, name, ns, unread, children, *kin in times
        ]
    summary = replace(profile.summary, notes=(*profile.summary.notes, *map(str, fields["notes"])))
    return _SavedPart(replace(profile, summary=summary), verdicts, times)


def _read(path: str) -> bytes:
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise ValueError("too large")
        return file.read()


def restored(paths: Sequence[str], window: str, broken: Callable[[], None]) -> Sequence[SpoolSegment]:
    """Return the segments of an unfinished window from its checkpoint files (spool.Restore)."""
    parts: list[_SavedPart] = []
    for path in paths:
        try:
            parts.append(_unpacked(_read(path)))
        except Exception:  # the agent must start whatever is wrong with a file
            broken()
    try:
        return _segments(parts, window) if parts else ()
    except Exception:  # for example, they are not from one window
        broken()
        return ()


def _segments(parts: Sequence[_SavedPart], window: str) -> Sequence[SpoolSegment]:
    """Return the segments of a window from its parts, with exact sums if all parts have the times of their
    processes.
    """
    whole = merge(part.profile for part in parts)
    has_exact_sums = all(part.times is not None for part in parts)
    if has_exact_sums:
        whole = with_exact_sums(whole, summed_times(time for part in parts for time in part.times or ()))

    def verdict(pid: int, started_ns: int) -> RuleVerdict:
        known = [each for part in parts for each in part.verdicts.get(pid, ())] or [(0, NOT_RECORDED)]
        return min(known, key=lambda each: abs(each[0] - started_ns))[1]

    summary = replace(whole.summary, notes=(*whole.summary.notes, said("window_recovered")))
    return segments(labelled(replace(whole, summary=summary), verdict), (), window, has_exact_sums)
