"""Query of an agent's spool for a span of time: the segments are read one after the other into one profile, which can
be divided by a label.

A query needs neither a lock nor a running agent. A segment belongs to a span if its window ended in it. Samples have
the time at which their window began. A file that cannot be read is skipped and named in the profile's notes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError, PyprofError, RecordingError
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.fleet.wire.segment_names import SegmentName, is_day
from pyprof.importers import pprof
from pyprof.importers.profile_builder import About, Builder
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.analysis.compiler_command_lines import program_name
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Profile, Span, ThreadInfo, ValueType
from pyprof.model.summary import Summary, summed
from pyprof.model.unwind_result import Trust
from pyprof.recording.untrusted_recording import read_bytes

MAX_SAMPLES = 4_000_000
"""Maximum number of different combinations of window, thread and stack in a query of a spool."""
MAX_NODES = 4_000_000
_SUMMED_TOGETHER = 256


def segments(root: str, span: TimeSpan, services: Sequence[str] = ()) -> list[SegmentName]:
    """Return the names of a spool's segments in a span of time, oldest first.

    Args:
        services: Names or shell patterns, empty for all.

    Raises:
        RecordingError: The spool cannot be read.
    """
    found = [
        name
        for name in _of_days(root, _days(span))
        if span.start_ns < name.end_ns <= span.end_ns
        if not services or any(fnmatchcase(name.service, service) for service in services)
    ]
    return sorted(found, key=lambda name: (name.end_ns, name.key))


def services(root: str) -> list[str]:
    """Return the services that have any segment in a spool."""
    return sorted({name.service for name in _of_days(root, None)})


def _days(span: TimeSpan) -> tuple[str, str]:
    first, last = (datetime.datetime.fromtimestamp(ns // 10**9, datetime.UTC) for ns in (span.start_ns, span.end_ns))
    return f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"


def _of_days(root: str, days: tuple[str, str] | None) -> Iterator[SegmentName]:
    """Yield the names of a spool's segments between two days, None for no limit."""
    disk = Disk()
    try:
        for day in disk.list_folder(root):
            if day.is_folder and is_day(day.name) and (days is None or days[0] <= day.name <= days[1]):
                for folder in disk.list_folder(f"{root}/{day.name}"):
                    for file in disk.list_folder(f"{root}/{day.name}/{folder.name}"):
                        name = SegmentName.parse(day.name, folder.name, file.name)
                        if name is not None and not file.is_folder:
                            yield name
    except OSError as error:
        raise RecordingError(f"{error.filename or root} cannot be read: {error.strerror}") from None


@dataclass(slots=True)
class _SegmentHeaders:
    """Facts about all segments of a query together, such as the times of their windows. `others` names the value types
    of segments that were left out because they have another mode.
    """

    kinds: tuple[ValueType, ...] = ()
    period_ns: int = 1
    windows: set[tuple[int, int]] = field(default_factory=set)
    done: list[Summary] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    read: int = 0

    def add_header(self, about: About) -> None:
        self.read += 1
        self.period_ns = about.period_ns
        self.windows.add((about.start_ns, about.start_ns + about.duration_ns))
        self.done.append(replace(about.done, duration_s=about.duration_ns / 1e9))
        if len(self.done) > _SUMMED_TOGETHER:
            self.done = [summed(self.done)]

    def recorded(self) -> list[Span]:
        """Return the intervals (start, end) that the segments of the query cover, in order and without overlap."""
        found: list[Span] = []
        for start, end in sorted(self.windows):
            begin = max(start, found[-1][1] if found else start)
            if end > begin:
                found.append((begin, end))
        return found

    def gaps(self) -> tuple[Span, ...]:
        """Return the intervals (start, end) between windows in which nothing was recorded."""
        found = pairwise(self.recorded())
        return tuple((end, start) for (_, end), (start, _) in found if start > end)

    def before(self, moments: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return for each moment the recorded time (that of all windows) before the moment, in nanoseconds."""
        spans = np.array(self.recorded(), np.int64).reshape(-1, 2)
        begin_ns, length_ns = spans[:, 0], spans[:, 1] - spans[:, 0]
        upto = np.append(0, np.cumsum(length_ns))
        at = np.searchsorted(begin_ns, moments, "right") - 1
        within = np.clip(moments - begin_ns[np.maximum(at, 0)], 0, length_ns[np.maximum(at, 0)])
        found: npt.NDArray[np.int64] = np.where(at < 0, 0, upto[np.maximum(at, 0)] + within)
        return found


def profile_of(root: str, names: Sequence[SegmentName], mode: str, title: str, gapless: bool = False) -> Profile:
    """Merge the segments of one mode, such as CPU time, into one profile.

    Args:
        gapless: Remove the time between windows, so that costs per time refer to the recorded time.

    Raises:
        PyprofError: There are no segments, or too many stacks.
    """
    builder, heads = Builder(), _SegmentHeaders()

    def wanted(kinds: tuple[ValueType, ...]) -> bool:
        return kinds[-1].type == mode and kinds == (heads.kinds or kinds)

    for name in names:
        if builder.samples > MAX_SAMPLES or builder.nodes > MAX_NODES:
            raise PyprofError(
                f"there are more than {MAX_SAMPLES:,} stacks in this span",
                "choose a shorter span (--since), or one service (--service)",
            )
        try:
            about = pprof.read_into(builder, read_bytes(f"{root}/{name.path}"), title, 0, wanted)
        except FileNotFoundError:
            continue  # dropped meanwhile
        except (FormatError, RecordingError, OverflowError) as error:
            heads.bad.append(f"{name.path}: {error}")
            continue
        if wanted(about.value_types):
            heads.kinds = about.value_types
            heads.add_header(about)
        else:
            heads.others.add(about.value_types[-1].type)
    if not heads.read:
        raise _nothing(heads, mode)
    return _built(builder, heads, title, gapless)


def _nothing(heads: _SegmentHeaders, mode: str) -> PyprofError:
    if heads.bad:
        return RecordingError(f"no segment could be read: {heads.bad[0]}")
    return PyprofError(f"no segment has {mode} samples", f"--mode {' or '.join(sorted(heads.others))}")


def _built(builder: Builder, heads: _SegmentHeaders, title: str, gapless: bool) -> Profile:
    first, last = min(start for start, _ in heads.windows), max(end for _, end in heads.windows)
    covered_ns = int(heads.before(np.array([last]))[0])
    note = make_note("read_from_segments", count=heads.read, minutes=covered_ns / 60e9)
    done = summed(heads.done)
    if heads.bad:
        unread = make_note("segments_unreadable", count=len(heads.bad), first=heads.bad[0])
        done = replace(done, notes=(*done.notes, unread))
    length_ns = covered_ns if gapless else last - first
    profile = builder.build(About(title, heads.kinds, (note,), 0, length_ns, heads.period_ns, done))
    times = first + heads.before(profile.time_ns) if gapless else profile.time_ns
    order = np.argsort(times, kind="stable")
    return replace(
        profile,
        start_ns=first,
        time_ns=times[order],
        gaps=() if gapless else heads.gaps(),
        stack=profile.stack[order],
        thread=profile.thread[order],
        values=profile.values[order],
    )


NONE = "(none)"
"""Text that stands for the value of a label of threads that do not have the label."""


def value_of(thread: ThreadInfo, by: str) -> str:
    """Return the text by which a query divides threads: the name of the thread or of its process, its pid, or the value
    of a label.
    """
    if by == "thread":
        return thread.name
    if by == "process":
        return program_name(thread.process)  # else each file of a build would be a separate series
    return str(thread.pid) if by == "pid" else dict(thread.labels).get(by, NONE)


def grouped(profile: Profile, by: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct values of a label, and the (n,) index of each sample's value."""
    values = list(dict.fromkeys(value_of(thread, by) for thread in profile.threads))
    place = {value: at for at, value in enumerate(values)}
    of_thread = np.array([place[value_of(thread, by)] for thread in profile.threads], np.int64)
    return values, of_thread[profile.thread] if len(values) else np.zeros(0, np.int64)


def parts(profile: Profile, by: str) -> list[tuple[str, Profile]]:
    """Return a separate profile for each value of a label, most expensive first."""
    values, group = grouped(profile, by)
    found = [(value, selected(profile, group == at)) for at, value in enumerate(values)]
    return sorted(found, key=lambda part: (-part[1].total, part[0]))


def rooted(profile: Profile, by: str) -> Profile:
    """Return a profile in which each stack has a new outermost frame: the value of a label of its thread. The summary
    stays that of the original stacks.
    """
    values, group = grouped(profile, by)
    tree, frame_of = Tree(), profile.frame.tolist()
    stack = np.zeros(len(profile.stack), np.int32)
    for at in range(len(values)):
        mine = group == at
        root = tree.child(0, len(profile.frames) + at)
        leaves: Sequence[int] = np.unique(profile.stack[mine]).tolist()
        place = rewrite(profile.parent.tolist(), lambda node: (frame_of[node],), tree, leaves, root)
        stack[mine] = np.array(place, np.int32)[profile.stack[mine]]
    roots = [Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, f"[{by}: {value}]") for value in values]
    return replace(
        profile,
        frames=(*profile.frames, *roots),
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=stack,
    )
