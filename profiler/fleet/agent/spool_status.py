"""The state of a spool from its files alone: what each service has, files without names, and queues of sinks.

A queue holds links to segments, so that a segment stays until the sink has accepted it. The running agent neither sends
nor counts the segments in queues of former sinks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pyprof.errors import PyprofError, UsageError
from pyprof.fleet.agent import spool_query
from pyprof.fleet.agent.spool import QUEUE
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.toml_config_files import SINK_NAME, TimeSpan
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.profile import FrameKind, Profile
from pyprof.model.unwind_result import StackEnd
from pyprof.options import SIMPLE_MODES
from pyprof.problem_counters import Problem

_MIN_SHARE = 0.01
_MAX_FILES = 20


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The contents of the spool for one service in a span of time.

    Attributes:
        segments: Number of segments.
        bytes: Total size of the segments.
        newest_ns: End of the last window, since the epoch.
        samples: Samples of all modes.
        stand_for: Average number of sampling times that one sample represents.
        whole: Share (0..1) of the measured amount with complete stacks, None if nothing was measured.
    """

    service: str
    segments: int
    bytes: int
    newest_ns: int
    samples: int
    stand_for: float
    whole: float | None


@dataclass(frozen=True, slots=True)
class Unnamed:
    """An object file for which function names are missing.

    Attributes:
        share: Share of the service's time in the file without a name.
        problems: Problems that the recordings state for the file, each with a hint.
    """

    service: str
    path: str
    build_id: str
    share: float
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class SpoolState:
    services: tuple[ServiceState, ...]
    unnamed: tuple[Unnamed, ...]


def state(root: str, span: TimeSpan) -> SpoolState:
    """Return the state of a spool in a span of time: for each service what is stored, and the object files without
    names.

    Raises:
        RecordingError: The spool cannot be read.
    """
    by_service: dict[str, list[SegmentName]] = {}
    for name in spool_query.segments(root, span):
        by_service.setdefault(name.service, []).append(name)
    sizes, services = _Sizes(root), []
    unnamed: list[Unnamed] = []
    for service, names in sorted(by_service.items()):
        profiles = list(_profiles(root, names))
        total = sum(profile.total for profile in profiles)
        whole = sum(profile.summary.shown.ends.get(StackEnd.ROOT.label, 0) for profile in profiles)
        services.append(
            ServiceState(
                service,
                len(names),
                sum(map(sizes.of, names)),
                names[-1].end_ns,
                samples := sum(int(profile.values[:, 0].sum()) for profile in profiles),
                sum(profile.total / profile.period_ns for profile in profiles) / samples if samples else 1.0,
                whole / total if total else None,
            )
        )
        unnamed += _unnamed(service, profiles, total)
    dearest = sorted(unnamed, key=lambda each: (-each.share, each.path))[:_MAX_FILES]
    return SpoolState(tuple(services), tuple(dearest))


class _Sizes:
    """A cache of the sizes of a spool's segments, by folder."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, dict[str, int]] = {}

    def of(self, name: SegmentName) -> int:
        folder = f"{self._root}/{name.day}/{name.folder}"
        if folder not in self._known:
            self._known[folder] = {found.name: found.size for found in Disk().list_folder(folder)}
        return self._known[folder].get(name.name, 0)


def _profiles(root: str, names: Sequence[SegmentName]) -> Iterator[Profile]:
    """Read segments, and yield one profile for each mode (such as CPU time) that has any samples."""
    for mode in SIMPLE_MODES:
        try:
            yield spool_query.profile_of(root, names, mode, mode)
        except PyprofError:
            continue


def _unnamed(service: str, profiles: Sequence[Profile], total: int) -> Iterator[Unnamed]:
    """Yield the object files whose samples lack function names, with the share of the service's time that is in
    each.
    """
    cost: Counter[tuple[str, str]] = Counter()
    problems: dict[tuple[str, str], dict[Problem, None]] = {}
    for profile in profiles:
        for each in profile.summary.modules:
            problems.setdefault((each.path, each.build_id), {}).update(dict.fromkeys(each.problems))
        for _, leaf, values in profile.totals():
            frame = profile.frames[profile.frame[leaf]] if leaf else None
            if frame is not None and frame.kind is FrameKind.NATIVE and frame.module >= 0 and not frame.lines:
                module = profile.modules[frame.module]
                cost[module.path, module.build_id] += int(values[-1])
    for (path, build_id), value in cost.items():
        if total and value >= _MIN_SHARE * total:
            yield Unnamed(service, path, build_id, value / total, tuple(problems.get((path, build_id), ())))


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue of a sink: its number of segments and bytes. oldest_ns is the end of its oldest window, 0 if it is
    empty.
    """

    sink: str
    segments: int
    bytes: int
    oldest_ns: int


def queues(root: str) -> list[QueueState]:
    """Return the size and age of each sink's queue in a spool, sorted by the name of the sink.

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
