"""Firefox Profiler's JSON (github firefox-devtools/profiler, src/types/profile.ts), gzipped. It is the processed
format, version 60.

Strings, sources, libraries, functions, frames and stacks are in tables that all threads share. Each row has the index
that its first use gave it, and parents come first.

An address becomes one frame for each function inlined there, outermost first. These frames have the same address and
native symbol, and inlineDepth 0, 1, … A function is one row for all mappings and processes. Addresses count from the
library's first loaded byte.

Each thread is a track below its process. Times are milliseconds since the recording began, with nanosecond resolution.
A sample's weight is the primary value. A wait is a marker from the first to the last of consecutive samples that have
the same wait on the same stack; nothing was recorded between them. If times are not known, the samples of a thread
follow one another in the file's order, and the profile says so.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO
from uuid import UUID

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
from pyprof.exporters.display_names import UNKNOWN, Level, frame_functions, labelled_name, module_name
from pyprof.model.analysis.function_costs import Function
from pyprof.model.integer_array_operations import distinct
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, ModuleInfo, Profile, ThreadInfo
from pyprof.model.untrusted_text import dump_json

WAITS = (
    *("sleeping", "uninterruptible sleep", "stopped", "stopped by a debugger", "idle", "woken"),
    *("waiting for a processor", "blocked"),
)
"""States of waiting threads, as they occur in the name of a wait's innermost frame, for example `[sleeping: futex]`."""
OTHER, NATIVE, JIT, INTERPRETED, KERNEL, WAITING, MISSING = range(7)
CATEGORIES = (
    ("Other", "grey", ("Other",)),
    ("Native", "blue", ("Other", "Inlined")),
    ("JIT", "green", ("Other", "Inlined")),
    ("Interpreted", "yellow", ("Other",)),
    ("Kernel", "orange", ("Other",)),
    ("Waiting", "transparent", ("Other", *WAITS)),
    ("Not recorded", "darkgrey", ("Other",)),
)
"""Categories of frames in a Firefox profile as (name, color, subcategories), by index. The profiler defines these color
names for light and dark mode.
"""

_WAIT = re.compile(rf"\[({'|'.join(sorted(WAITS, key=len, reverse=True))})(?:: (.*))?\]", re.DOTALL)
_RUN_TIME = ("[anon", "/memfd:", "/dev/zero", "/anon_hugepage", "//anon")
"""Prefixes of the names of memory mappings that contain JIT code."""
_ADDRESSES = 1 << 32
"""Lowest address that Firefox Profiler cannot store. This and higher addresses are left out."""
_LIBRARY = 1

FRAME_COLUMNS = (
    *("address", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID", "line", "column"),
)
FUNC_COLUMNS = ("name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber")
RESOURCE_COLUMNS = ("lib", "name", "host", "type")
SYMBOL_COLUMNS = ("libIndex", "address", "name", "functionSize")

TableRow = tuple[object, ...]


def wait_of(frame: Frame) -> tuple[str, str] | None:
    """Return (state, system call or "") if a frame is the innermost frame of a wait, otherwise None."""
    found = _WAIT.fullmatch(frame.title) if frame.kind is FrameKind.KERNEL else None
    return (found[1], found[2] or "") if found else None


class SharedTables:
    """A builder of the tables that all threads of a Firefox profile share.

    Attributes:
        place: Row in the stack table for each node of the profile's tree, -1 for nodes that no sample's stack contains.
    """

    def __init__(self, profile: Profile, options: ExportOptions, leaves: list[int]) -> None:
        self._profile, self._options = profile, options
        self._strings: dict[str, int] = {}
        self._libs: dict[str, int] = {}
        self._lib_rows: list[dict[str, object]] = []
        self._resources: list[TableRow] = []
        self._sources: dict[int, int] = {}
        self._functions: dict[Function, int] = {}
        self._function_rows: list[list[object]] = []
        self._symbols: dict[TableRow, int] = {}
        self._frames: dict[TableRow, int] = {}
        self._tree = Tree()
        rows = [self._rows(frame) for frame in profile.frames]
        frame_of = profile.frame.tolist()
        place = rewrite(profile.parent.tolist(), lambda node: rows[frame_of[node]], self._tree, leaves)
        if 0 in leaves:  # the profiler would not count a stack without frames
            at = self._function(Function("", UNKNOWN, FrameKind.MARKER), Level(UNKNOWN, FrameKind.MARKER, -1), -1)
            place[0] = self._tree.child(0, self._frame((-1, 0, MISSING, 0, at, None, None, None, None)))
        self.place = [node - 1 for node in place]

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def shared(self) -> dict[str, object]:
        """Return the tables that all threads of the Firefox profile share. All threads must have been added before,
        because they add rows and strings.
        """
        parents = self._tree.parent[1:]
        return {
            "stringArray": list(self._strings),
            "sources": {"length": len(self._sources), "id": [None] * len(self._sources), "filename": [*self._sources]},
            "stackTable": {
                "length": len(parents),
                "frame": self._tree.frame[1:],
                "prefix": [parent - 1 if parent else None for parent in parents],
            },
            "frameTable": _table(FRAME_COLUMNS, self._frames),
            "funcTable": _table(FUNC_COLUMNS, self._function_rows),
            "resourceTable": _table(RESOURCE_COLUMNS, self._resources),
            "nativeSymbols": _table(SYMBOL_COLUMNS, self._symbols),
        }

    def libs(self) -> list[dict[str, object]]:
        return self._lib_rows

    def _rows(self, frame: Frame) -> list[int]:
        """Return the rows of the Firefox profile's frame table for one frame, outermost first. A frame with inlined
        functions has several rows. Missing rows are added.
        """
        code = frame.kind in (FrameKind.NATIVE, FrameKind.INLINE)
        lib = self._lib(frame.module) if code and frame.module >= 0 else -1
        address = frame.rel - (frame.pc - frame.lookup) if lib >= 0 else -1
        address = address if 0 <= address < _ADDRESSES else -1
        category, subcategory = self._category(frame)
        symbol = self._symbol(frame, lib, address)
        found = []
        for depth, (function, level) in enumerate(frame_functions(self._profile, frame, self._options)):
            at = self._function(function, level, lib)
            inlined = depth > 0 and category in (NATIVE, JIT)
            row = (address, depth, category, 1 if inlined else subcategory, at, symbol, None, level.line or None, None)
            found.append(self._frame(row))
        return found

    def _category(self, frame: Frame) -> tuple[int, int]:
        wait = wait_of(frame)
        if wait:
            return WAITING, 1 + WAITS.index(wait[0])
        if frame.kind in (FrameKind.NATIVE, FrameKind.INLINE):
            path = self._profile.modules[frame.module].path if frame.module >= 0 else "[anon]" * bool(frame.lines)
            return (JIT if path.startswith(_RUN_TIME) else NATIVE), 0
        return {FrameKind.INTERPRETER: INTERPRETED, FrameKind.KERNEL: KERNEL}.get(frame.kind, MISSING), 0

    def _frame(self, row: TableRow) -> int:
        return self._frames.setdefault(row, len(self._frames))

    def _symbol(self, frame: Frame, lib: int, address: int) -> int | None:
        """Return the index in the Firefox profile's symbol table of the native function that contains an address, or
        None if the function has no name.
        """
        outermost = frame.lines[-1] if frame.lines else None
        if address < 0 or outermost is None or not outermost.system_name or outermost.offset > frame.rel:
            return None
        name = self.string(outermost.function or outermost.system_name)
        row = (lib, min(frame.rel - outermost.offset, address), name, None)
        return self._symbols.setdefault(row, len(self._symbols))

    def _function(self, function: Function, level: Level, lib: int) -> int:
        """Return the row of the Firefox profile's function table for a function. A missing row is added. The first
        source file that is known for the function counts.
        """
        at = self._functions.setdefault(function, len(self._functions))
        if at == len(self._function_rows):
            self._function_rows.append([self.string(level.name), False, False, lib, None, None, None])
        row = self._function_rows[at]
        if row[4] is None and level.file:
            row[4] = self._sources.setdefault(self.string(level.file), len(self._sources))
        return at

    def _lib(self, index: int) -> int:
        """Return the row of the Firefox profile's library table for a module's file. All mappings of a file share one
        row. The resource table has the same row numbers.
        """
        module = self._profile.modules[index]
        at = self._libs.setdefault(module.build_id or module.path, len(self._libs))
        if at == len(self._lib_rows):
            self._lib_rows.append(_described(module))
            name = self.string(module_name(self._profile, index, self._options))
            self._resources.append((at, name, None, _LIBRARY))
        return at


def _table(columns: tuple[str, ...], rows: Iterable[Iterable[object]]) -> dict[str, object]:
    every = list(rows)
    found = zip(*every, strict=True) if every else [()] * len(columns)
    return {"length": len(every)} | {name: list(column) for name, column in zip(columns, found, strict=True)}


def _described(module: ModuleInfo) -> dict[str, object]:
    names = dict.fromkeys(("name", "debugName"), module.name) | dict.fromkeys(("path", "debugPath"), module.path)
    return {"arch": ""} | names | {"breakpadId": breakpad_id(module.build_id), "codeId": module.build_id or None}


def breakpad_id(build_id: str) -> str:
    """Return the id of an object file on symbol servers: 16 bytes of the build ID as a GUID, followed by the age 0. It
    is "" without a build ID.
    """
    try:
        head = bytes.fromhex(build_id)[:16]
    except ValueError:
        return ""
    return UUID(bytes_le=head.ljust(16, b"\0")).hex.upper() + "0" if head else ""


VERSION = 60
_BROWSER_VERSION = 32
"""Version of the Firefox profile format that browsers write, which the file must state although it is in the processed
format.
"""
_MS = 1_000_000
_WEIGHTS = {"nanoseconds": "tracing-ms", "bytes": "bytes"}
_NOT_ONE_WAIT = "waits too short or too many for stacks"
"""Text in place of a system call in the innermost frame of samples that sum up many waits. Such samples get no wait
marker.
"""
_INTERVAL = 1
"""Number in a Firefox profile for the phase of a marker that has a beginning and an end."""
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
    """Write a profile as Firefox Profiler's JSON. Each thread is a track, whatever the options say."""
    every = np.arange(len(profile.stack))
    notes = [] if has_times(profile, every) else [IN_SEQUENCE]
    profile = place_in_sequence(profile) if notes else profile
    tables = SharedTables(profile, options, distinct(profile.stack).tolist())
    # no file name and no time in the header, so that equal profiles give equal bytes
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0) as packed:
        packed.write(b'{"meta":' + dump_json(_meta(profile, [*notes, *(note.text for note in profile.summary.notes)])))
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
    """Yield the JSON of each thread. At least one is yielded, because Firefox Profiler refuses a profile without
    threads.
    """
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
    """Yield the (pid, tid) under which Firefox Profiler shows each thread. If a number occurs twice, the later process
    or thread gets a suffix: "100.1".
    """
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

    The column threadCPUDelta is the CPU time before a sample. Firefox Profiler draws from it how busy the thread was.
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
    """Return the Firefox profile's table of a thread's wait markers. Consecutive samples of a wait with the same stack
    become one marker.
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
