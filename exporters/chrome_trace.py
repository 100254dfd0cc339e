"""Chrome's trace as one JSON object (the Chromium project's document "Trace Event Format"): X and M events, stackFrames
and samples. ui.perfetto.dev, chrome://tracing and speedscope open it.

Each thread is a track. A function is a slice ("X") from the first to the last of consecutive samples that have it at
this place of the stack. This is an inference, since nothing was recorded between samples. The trace also has the
samples, each with its weight and, if known, its processor. Perfetto shows only the slices, speedscope only the samples.
Times are in microseconds since the recording began. If they are not known, the samples of a thread follow one another
in the file's order, and the trace says so. A thread or process with the number of an earlier one becomes a separate
track, with a number that is higher by 4,194,304 (Linux's PID limit).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pyprof.errors import OutputError
from pyprof.exporters.base import ExportOptions
from pyprof.exporters.begin_end_times import (
    IN_SEQUENCE,
    call_slices,
    has_times,
    origin_ns,
    place_in_sequence,
    sample_ends,
    sample_lengths,
)
from pyprof.exporters.depth_limit import limit_stack_depth
from pyprof.exporters.display_names import UNKNOWN, Level, frame_functions, module_name
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.function_costs import Function
from pyprof.model.integer_array_operations import distinct
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import FrameKind, Profile
from pyprof.model.thread_identity import ProcessKey
from pyprof.model.untrusted_text import dump_json

I64 = npt.NDArray[np.int64]

_PID_LIMIT = 1 << 22
MAX_FRAMES = 4_000_000
"""Maximum number of frames in all stacks of a Chrome trace. In the worst case each frame becomes a slice, which takes
150 bytes.
"""


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    """Write a profile as a Chrome trace. Each thread is a track, whatever the options say.

    Raises:
        OutputError: The value of a sample is negative, which cannot be a time.
    """
    weights = profile.values[:, -1]
    if weights.size and int(weights.min()) < 0:
        raise OutputError("a trace cannot show negative weights", "-f collapsed, or -f pprof")
    kept = np.flatnonzero(weights > 0)
    known = has_times(profile, kept)
    profile = profile if known else place_in_sequence(profile)
    profile = limit_stack_depth(profile, profile.stack[kept], MAX_FRAMES)
    calls = _Calls(profile, options, distinct(profile.stack[kept]).tolist())
    out.write(b'{"displayTimeUnit":"ns","otherData":')
    about = {"title": profile.title, "start_ns": str(profile.start_ns), "exporter": "pyprof"}
    out.write(dump_json(about if known else about | {"note": IN_SEQUENCE}))
    out.write(b',"traceEvents":[')
    out.write(b",\n".join(_names(profile)))
    where = _numbers(profile)
    tracks = [
        _Track.build(profile, calls, samples, where[profile.thread[samples[0]]])
        for samples in _by_thread(profile, kept)
    ]
    for track in tracks:
        for event in track.slices(calls, profile.period_ns):
            out.write(b",\n")
            out.write(event)
    out.write(b'],\n"stackFrames":{')
    out.write(b",\n".join(calls.stack_frames()))
    out.write(b'},\n"samples":[')
    name = dump_json(profile.value_types[-1].type)
    out.write(b",\n".join(sample for track in tracks for sample in track.samples(name)))
    out.write(b"]}\n")


def _names(profile: Profile) -> Iterator[bytes]:
    """Yield the Chrome trace's metadata events with the names of processes and threads."""
    where = _numbers(profile)
    processes = {pid: each.process or "process" for (pid, _), each in zip(where, profile.threads, strict=True)}
    for pid, name in sorted(processes.items()):
        yield dump_json({"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}})
    threads = {ids: each.name or "thread" for ids, each in zip(where, profile.threads, strict=True)}
    for (pid, tid), name in sorted(threads.items()):
        yield dump_json({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})


def _numbers(profile: Profile) -> list[tuple[int, int]]:
    """Return for each thread of a profile a unique (pid, tid) in the Chrome trace."""
    processes: dict[int, list[ProcessKey]] = {}
    threads: dict[tuple[int, int], int] = {}
    found = []
    for thread in profile.threads:
        of_pid = processes.setdefault(thread.pid, [])
        if thread.process_key not in of_pid:
            of_pid.append(thread.process_key)
        pid = thread.pid + _PID_LIMIT * of_pid.index(thread.process_key)
        nth = threads[pid, thread.tid] = threads.get((pid, thread.tid), -1) + 1
        found.append((pid, thread.tid + _PID_LIMIT * nth))
    return found


def _by_thread(profile: Profile, kept: I64) -> Iterator[I64]:
    """Yield for each track (thread) of the Chrome trace the indices of its samples, in time order."""
    pid, tid = np.array(_numbers(profile), np.int64).reshape(-1, 2)[profile.thread[kept]].T
    order = np.lexsort((profile.time_ns[kept], tid, pid))
    pid, tid = pid[order], tid[order]
    borders = np.flatnonzero((pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])) + 1
    yield from (part for part in np.split(kept[order], borders) if len(part))


class _Calls:
    """The stacks of a profile as a tree of functions, from which the slices (function calls) of a Chrome trace are
    made. Several addresses of a function under one caller become one node.

    Attributes:
        tree: Tree of functions; the frame of a node is a function's number.
        place: Node of this tree for each leaf node of the profile's tree.
        events: Beginning of the JSON of each function's slices.
    """

    def __init__(self, profile: Profile, options: ExportOptions, leaves: list[int]) -> None:
        self.events: list[bytes] = []
        self._frames: list[dict[str, str]] = []
        self.tree = Tree()
        numbers: dict[Function, int] = {}
        rows: list[list[int]] = []
        for frame in profile.frames:
            rows.append([])
            for function, level in frame_functions(profile, frame, options):
                number = numbers.setdefault(function, len(numbers))
                if number == len(self.events):
                    self._add(level, module_name(profile, level.module, options))
                rows[-1].append(number)
        frame_of = profile.frame.tolist()
        self.place = rewrite(profile.parent.tolist(), lambda node: rows[frame_of[node]], self.tree, leaves)
        if 0 in leaves:  # a stack without frames becomes one with an unknown function
            self.place[0] = self.tree.child(0, len(self.events))
            self._add(Level(UNKNOWN, FrameKind.MARKER, -1), "")

    def _add(self, level: Level, module: str) -> None:
        event: dict[str, object] = {"ph": "X", "name": level.name, "cat": level.kind.name.lower()}
        args = {key: value for key, value in (("module", module), ("file", level.file)) if value}
        self.events.append(dump_json(event | ({"args": args} if args else {}))[:-1])
        self._frames.append({"name": level.name, "category": module or level.file or level.kind.name.lower()})

    def stack_frames(self) -> Iterator[bytes]:
        for node in range(1, len(self.tree.parent)):
            parent = self.tree.parent[node]
            entry: dict[str, object] = dict(self._frames[self.tree.frame[node]])
            yield b'"%d":' % node + dump_json(entry | ({"parent": parent} if parent else {}))


@dataclass(frozen=True)
class _Track:
    """The samples of one thread for a Chrome trace, in time order.

    Attributes:
        where: "pid" and "tid" as JSON.
        time_ns: Time of each sample since the recording began.
        length_ns: Time that each sample represents.
        node: Node of each sample in _Calls.tree.
        weight: Primary value of each sample.
        cpu: Processor of each sample, -1 if it is not known.
    """

    where: bytes
    time_ns: I64
    length_ns: I64
    node: list[int]
    weight: list[int]
    cpu: list[int]

    @classmethod
    def build(cls, profile: Profile, calls: _Calls, samples: I64, ids: tuple[int, int]) -> _Track:
        return cls(
            b'"pid":%d,"tid":%d' % ids,
            profile.time_ns[samples] - origin_ns(profile),
            sample_lengths(profile, samples),
            [calls.place[leaf] for leaf in profile.stack[samples].tolist()],
            profile.values[samples, -1].tolist(),
            [-1] * len(samples) if profile.cpu is None else profile.cpu[samples].tolist(),
        )

    def samples(self, name: bytes) -> Iterator[bytes]:
        """Yield the JSON of each sample of this thread, for the list of all samples in the Chrome trace. `name` is the
        name of the profile's value type as JSON.
        """
        for time_ns, node, weight, cpu in zip(self.time_ns.tolist(), self.node, self.weight, self.cpu, strict=True):
            processor = b',"cpu":%d' % cpu if cpu >= 0 else b""
            yield b'{"name":%b,%b,"ts":%b,"sf":%d,"weight":%d%b}' % (
                *(name, self.where, _microseconds(time_ns), node, weight, processor),
            )

    def slices(self, calls: _Calls, period_ns: int) -> Iterator[bytes]:
        """Yield complete events ("X") of the Chrome trace for the function calls of this thread. Outer calls come
        before calls inside them.
        """
        until = sample_ends(self.time_ns, self.length_ns, period_ns)
        for begin, end, function in call_slices(calls.tree, self.node, self.time_ns.tolist(), until.tolist()):
            times = (_microseconds(begin), _microseconds(end - begin))
            yield calls.events[function] + b",%b" % self.where + b',"ts":%b,"dur":%b}' % times


def _microseconds(ns: int) -> bytes:
    """Format nanoseconds as microseconds, with all decimals."""
    whole, rest = divmod(ns, 1000)
    return b"%d.%03d" % (whole, rest) if rest else b"%d" % whole
