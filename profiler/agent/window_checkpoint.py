"""Checkpoints of an unfinished window: its parts, as the worker sent them, with the rules' labels of their processes.

They become segments only if the agent was killed, so they are stored without being parsed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyprof.agent.processes import ProcessLabels
from pyprof.agent.rules import NOT_RECORDED, RuleVerdict
from pyprof.agent.splitting import labelled, segments
from pyprof.agent.spool import SpoolSegment
from pyprof.model.merge import merge
from pyprof.model.profile import Profile
from pyprof.objfile.source import open_regular
from pyprof.records import replace
from pyprof.session.worker import response_codec
from pyprof.session.worker.channel import Part

_BEGINS = b"pyprof part of a window\n"
_MOST_BYTES = 1 << 30


def packed(part: Sequence[Part], notes: Sequence[str], labels: Iterable[ProcessLabels]) -> bytes:
    """Encode a checkpoint file.

    Args:
        part: See Recording.packed_part().
        notes: Notes for the summary.
        labels: Labels of the processes.
    """
    sets: dict[object, int] = {}
    processes = [(each.pid, each.began_ns, sets.setdefault(each.labels, len(sets))) for each in labels]
    data = b"".join(part)
    head = {
        "layout": response_codec.layout(),
        "checksum": zlib.crc32(data),
        "sizes": [memoryview(each).nbytes for each in part],
        "notes": list(notes),
        "labels": list(sets),
        "processes": processes,
    }
    return b"".join((_BEGINS, json.dumps(head).encode(), b"\n", data))


def _unpacked(data: bytes) -> Profile:
    """Decode a checkpoint file.

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

    def verdict(pid: int, started_ns: int) -> RuleVerdict:
        known = verdicts.get(pid) or [(0, NOT_RECORDED)]
        return min(known, key=lambda each: abs(each[0] - started_ns))[1]

    summary = replace(profile.summary, notes=(*profile.summary.notes, *map(str, fields["notes"])))
    return labelled(replace(profile, summary=summary), verdict)


def _read(path: str) -> bytes:
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise ValueError("too large")
        return file.read()


def restored(paths: Sequence[str], window: str, broken: Callable[[], None]) -> Sequence[SpoolSegment]:
    """Return the segments of a window from its checkpoint files (spool.Restore)."""
    parts: list[Profile] = []
    for path in paths:
        try:
            parts.append(_unpacked(_read(path)))
        except Exception:  # the agent must start whatever is wrong with a file
            broken()
    try:
        return segments(merge(parts), (), window) if parts else ()
    except Exception:  # for example, they are not from one window
        broken()
        return ()
