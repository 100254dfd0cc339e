"""Queues of a spool, both of configured sinks and of former ones.

A queue holds links to segments, so that a segment stays until the sink has accepted it. The running agent neither sends
nor counts the segments in queues of former sinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from pyprof.agent.config_schema import SINK_NAME
from pyprof.agent.segment_names import SegmentName
from pyprof.agent.spool import QUEUE
from pyprof.agent.spool_io import Disk
from pyprof.errors import UsageError
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue of segments; oldest_ns is the end of its oldest window, 0 for none."""

    sink: str
    segments: int
    bytes: int
    oldest_ns: int


def queues(root: str) -> list[QueueState]:
    """Return the queues of sinks in a spool, sorted by name.

    Raises:
        OSError: A folder cannot be read.
    """
    found = []
    for folder in Disk().list_folder(f"{root}/{QUEUE}"):
        if folder.is_folder and re.fullmatch(SINK_NAME, folder.name):
            files = list(_files(f"{root}/{QUEUE}/{folder.name}"))
            oldest_ns = min((name.end_ns for _, name, _ in files), default=0)
            found.append(QueueState(folder.name, len(files), sum(size for *_, size in files), oldest_ns))
    return sorted(found, key=lambda queue: queue.sink)


def _files(top: str) -> Iterator[tuple[str, SegmentName, int]]:
    """Yield (folder, name, size in bytes) of each segment below a folder."""
    look = Disk().list_folder
    for day in look(top):
        for service in look(f"{top}/{day.name}"):
            for file in look(f"{top}/{day.name}/{service.name}"):
                name = SegmentName.parse(day.name, service.name, file.name)
                if name is not None and not file.is_folder:
                    yield f"{top}/{day.name}/{service.name}", name, file.size


def forget(root: str, sink: str) -> int:
    """Delete the queue of a former sink with its segments, and return their number. Other files are kept.

    Raises:
        OSError: A file cannot be deleted.
        UsageError: There is no such queue.
    """
    known = [queue.sink for queue in queues(root)]
    if sink not in known:
        raise UsageError(f"there is no queue {sink!r}", f"queues: {', '.join(known) or 'none'}")
    top, disk, count = f"{root}/{QUEUE}/{sink}", Disk(), 0
    for folder, name, _ in list(_files(top)):
        disk.unlink(f"{folder}/{name.name}")
        count += 1
    for day in list(disk.list_folder(top)):
        for service in list(disk.list_folder(f"{top}/{day.name}")):
            with suppress(OSError):  # something else is there
                disk.remove_folder(f"{top}/{day.name}/{service.name}")
        with suppress(OSError):
            disk.remove_folder(f"{top}/{day.name}")
    with suppress(OSError):
        disk.remove_folder(top)
    return count
