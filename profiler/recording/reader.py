"""Reads a recording file as a Profile.

The file is untrusted: every reference and number is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError, RecordingError
from pyprof.lazy_dataclasses import dataclass, field_names, replace
from pyprof.model.analysis.merge import clip_gaps
from pyprof.model.analysis.stack_quality import summary_of_part
from pyprof.model.integer_array_operations import MAX_SUM, largest_sum
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, Span, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.model.thread_identity import Labels
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.recording.checked_rows import LATER, NAME_SOURCES, Codes, TableRows, check_reference
from pyprof.recording.column_blocks import I64, Blocks, FrameColumns, FunctionName, LineColumns, unpack_columns
from pyprof.recording.summary_rows import read_summary
from pyprof.recording.untrusted_recording import open_recording
from pyprof.recording.writer import SECOND_NS

KEYS = 5
"""Number of columns of a recorded sample before its values: time, thread, stack, state, processor."""
MAX_NS = 1 << 62
"""Limit for times in a recording file, in nanoseconds. The sum of two times stays within 64 bits."""
_MAX_GAPS = 20_000
MAX_VALUES = 16
"""Maximum number of values of a recorded sample. A constant column takes no bytes in the file, but takes memory."""
_USUAL_SAMPLES = 1_000_000
_MAX_PER_BYTE = 8
"""Maximum number of samples in a recording file for each byte of the file. Fewer than _USUAL_SAMPLES are always
permitted.

This keeps an untrusted count from exhausting memory.
"""

INTERRUPTED = make_note("recording_interrupted")


def load_recording(path: str | PathLike[str]) -> Profile:
    """Read a recording file as a Profile.

    Raises:
        RecordingError: The file is no recording, broken or too new.
    """
    name = fspath(path)
    database, size = open_recording(name)
    with closing(database):
        try:
            return _Reader(TableRows(database, size), size).profile()
        except (FormatError, OverflowError) as error:
            raise RecordingError(f"{name} is broken: {error}") from None


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of all samples of a recording file. References are indices from 0, except `stack`, which is a node."""

    time_ns: I64
    thread: I64
    stack: I64
    state: I64 | None
    cpu: I64 | None
    values: I64


class _Reader:
    def __init__(self, rows: TableRows, size: int) -> None:
        self._rows = rows
        self._blocks = Blocks(rows, size)
        self._samples_left = max(_USUAL_SAMPLES, size * _MAX_PER_BYTE)
        self._codes = Codes(rows)

    def profile(self) -> Profile:
        """Return the Profile of a recording file.

        Raises:
            FormatError: A row is invalid.
        """
        meta: dict[str, Any] = dict(self._rows("meta"))
        value_types = tuple(ValueType(kind, unit) for _, kind, unit in self._rows("value_types"))
        if not 0 < len(value_types) <= MAX_VALUES:
            raise FormatError("value_types", len(value_types), "none, or more than there are")
        modules, threads = self._modules(), self._threads()
        frames = self._frames(len(modules))
        nodes = self._blocks.unpack_stacks(len(frames))
        frames, node_frame = _by_first_use(frames, nodes[:, 1])
        samples = self._samples(len(threads), len(nodes), len(value_types))
        start_ns = _nanoseconds(meta, "start_ns")
        whole, summary = bool(self._rows("end")), read_summary(self._rows)
        last = int(samples.time_ns.max()) if len(samples.time_ns) else start_ns
        profile = Profile(
            value_types=value_types,
            period_ns=max(_nanoseconds(meta, "period_ns"), 1),
            start_ns=start_ns,
            duration_ns=_nanoseconds(meta, "duration_ns") if whole else max(last - start_ns, 0),
            title=_fact(meta, "title", str),
            frames=frames,
            parent=np.concatenate([[-1], nodes[1:, 0]]).astype(np.int32),
            frame=node_frame,
            modules=modules,
            threads=threads,
            time_ns=samples.time_ns,
            stack=samples.stack.astype(np.int32),
            thread=samples.thread.astype(np.int32),
            values=samples.values,
            summary=summary or Summary(),
            state=None if samples.state is None else self._codes.convert_states(samples.state),
            cpu=None if samples.cpu is None else samples.cpu.astype(np.int32),
            options=dict(self._rows("options")),
        )
        known = clip_gaps(_gaps(meta), start_ns, start_ns + profile.duration_ns)
        profile = replace(profile, gaps=known) if known else profile
        return profile if whole and summary else _interrupted(profile)

    def _modules(self) -> tuple[ModuleInfo, ...]:
        return tuple(
            ModuleInfo(
                path,
                build_id or "",
                to_unsigned(start),
                to_unsigned(end),
                to_unsigned(offset),
                bool(named),
                bool(lines),
            )
            for _, path, build_id, start, end, offset, named, lines in self._rows("modules")
        )

    def _threads(self) -> tuple[ThreadInfo, ...]:
        processes = self._rows("processes")
        found = []
        labels: dict[int, Labels] = {}
        for thread, label, value in self._rows("labels"):
            labels[thread] = (*labels.get(thread, ()), (label, value))
        for at, process, tid, started, name in self._rows("threads"):
            _, pid, began, process_name = processes[check_reference("threads", at, process, len(processes))]
            of_thread = labels.pop(at, ())
            found.append(ThreadInfo(pid, tid, name, process_name, started or 0, began or 0, of_thread))
        if labels:
            raise FormatError("labels", 0, f"refers to a thread {min(labels)} that does not exist")
        return tuple(found)

    def _frames(self, modules: int) -> tuple[Frame, ...]:
        columns, lines = self._blocks.unpack_frames()
        names, marks = self._blocks.unpack_functions(), self._marks(len(columns.module))
        functions = self._lines(names, lines, np.repeat(columns.rel, columns.lines) - lines.start)
        ends = np.cumsum(columns.lines)
        rows = zip(*(getattr(columns, name).tolist() for name in field_names(FrameColumns)), ends.tolist(), strict=True)
        kinds, trusts = self._codes.code_map("frame_kind"), self._codes.code_map("trust")
        found = []
        for at, (module, rel, base, back, trust, kind, title, count, end) in enumerate(rows, 1):
            if kind not in kinds or trust not in trusts:
                raise FormatError("frames", at, "a code that is not known: perhaps a newer pyprof reads it")
            if not title and not count:
                raise FormatError("frames", at, "neither a title nor a function")
            pc, of_frame = base + rel, functions[end - count : end]
            shown, mark = of_frame[-1].function if count else "", marks.get(at)
            if title:
                shown = names[check_reference("frames", at, title, len(names))].format_name(to_unsigned(rel))
            found.append(
                Frame(
                    FrameKind(kinds[kind]),
                    to_unsigned(pc),
                    to_unsigned(pc - back),
                    to_unsigned(rel),
                    check_reference("frames", at, module, modules) if module else -1,
                    of_frame,
                    Trust(trusts[trust]),
                    shown,
                    mark and mark.with_name_from_title(shown),
                )
            )
        return tuple(found)

    def _lines(self, names: Sequence[FunctionName], lines: LineColumns, offsets: I64) -> tuple[Line, ...]:
        """Return the functions of all frames of a recording file."""
        files = [None, *self._blocks.unpack_files()]
        later = {source for source, name in self._rows("name_sources") if name == NAME_SOURCES[LATER]}
        found = []
        rows = zip(*(getattr(lines, name).tolist() for name in field_names(LineColumns)), offsets.tolist(), strict=True)
        for at, (start, function, file, line, offset) in enumerate(rows, 1):
            name = names[check_reference("lines", at, function, len(names))]
            path = files[check_reference("lines", at, file + 1, len(files))]
            known = name.format_name(to_unsigned(start)), name.system_name or ""
            found.append(Line(*known, offset, path, line, name.source in later))
        return tuple(found)

    def _marks(self, frames: int) -> dict[int, Mark]:
        kinds, ends = self._codes.code_map("mark_kind"), self._codes.code_map("stack_end")
        found = {}
        for nth, (frame, kind, end, enough, unplaced, without_run, lacking) in enumerate(self._rows("marks"), 1):
            check_reference("marks", nth, frame, frames)
            if kind not in kinds or end not in ends:
                raise FormatError("marks", nth, "a code that is not known: perhaps a newer pyprof reads it")
            numbers = enough or 0, unplaced, without_run, lacking
            found[frame] = Mark(MarkKind(kinds[kind]), StackEnd(ends[end]), *numbers)
        return found

    def _samples(self, threads: int, nodes: int, values: int) -> _Columns:
        parts = [self._window(row, values) for row in self._rows("windows")]
        columns = []
        for at in range(KEYS + values):
            known = [part[at] for part in parts]
            kept = [column for column in known if column is not None]
            columns.append(np.concatenate(kept) if kept and len(kept) == len(known) else None)
        time_ns, thread, stack, state, cpu, *amounts = columns
        none = np.zeros(0, np.int64)
        if not parts:
            return _Columns(none, none, none, none, none, np.zeros((0, values), np.int64))
        given = [column for column in amounts if column is not None]
        if time_ns is None or thread is None or stack is None or len(given) != values:
            raise FormatError("windows", 0, "a column that each sample has is missing")
        if int(thread.min()) < 1 or int(thread.max()) > threads or int(stack.min()) < 0 or int(stack.max()) >= nodes:
            raise FormatError("windows", 0, "a sample refers to a thread or a stack that does not exist")
        if int(time_ns.min()) <= -MAX_NS or int(time_ns.max()) >= MAX_NS:
            raise FormatError("windows", 0, "a time that no clock has")
        amounts_of = np.stack(given, axis=1)
        if largest_sum(amounts_of) >= MAX_SUM:
            raise FormatError("windows", 0, "values that are too large together")
        return _Columns(time_ns, thread - 1, stack, state, cpu, amounts_of)

    def _window(self, row: tuple[Any, ...], values: int) -> list[I64 | None]:
        _, start_ns, samples, _, data = row
        self._samples_left -= samples
        if samples < 0 or self._samples_left < 0:
            raise FormatError("windows", row[0], "more samples than the file has room for")
        columns = unpack_columns(data, samples, KEYS + values)
        if columns[0] is not None:
            columns[0] = start_ns + np.cumsum(columns[0])
        return columns


def _interrupted(profile: Profile) -> Profile:
    """Return the profile of an interrupted recording, which has no summary, with a summary that is computed from its
    samples.
    """
    known = profile.summary
    summary = replace(
        known,
        duration_s=round(profile.duration_ns / SECOND_NS, 6),
        rate_wanted=known.rate_wanted or round(1e9 / profile.period_ns, 3),
        notes=(*known.notes, INTERRUPTED),
    )
    return replace(profile, summary=summary_of_part(summary, profile))


def _by_first_use(frames: tuple[Frame, ...], number: I64) -> tuple[tuple[Frame, ...], npt.NDArray[np.int32]]:
    """Renumber the frames of a recording file in the order in which stack nodes use them, as a recording does.

    Args:
        frames: The frames.
        number: (nodes,) Number of each node's frame.
    """
    used, first = np.unique(number[1:] - 1, return_index=True)
    is_unused = np.ones(len(frames), np.bool_)
    is_unused[used] = False
    order = np.concatenate([used[np.argsort(first)], np.flatnonzero(is_unused)])
    place = np.empty(len(frames) + 1, np.int32)
    place[0], place[order + 1] = -1, np.arange(len(frames))
    return tuple(frames[at] for at in order.tolist()), place[number]


def to_unsigned(number: int) -> int:
    """Convert a signed number of SQLite to an address."""
    return number % (1 << 64)


def _fact(meta: dict[str, Any], key: str, kind: Any) -> Any:
    value = meta.get(key)
    if not isinstance(value, kind):
        raise FormatError("meta", 0, f"{key} is missing")
    return value


def _gaps(meta: dict[str, Any]) -> tuple[Span, ...]:
    """Read the gaps of a recording, and check that they are in order and do not overlap.

    Raises:
        FormatError: The gaps are invalid.
    """
    try:
        found = [int(number) for number in str(meta.get("gaps", "")).replace("-", ",").split(",") if number]
    except ValueError:
        found = [0]
    inside = not found or 0 <= found[0] <= found[-1] < MAX_NS
    if len(found) % 2 or len(found) > _MAX_GAPS or found != sorted(found) or not inside:
        raise FormatError("meta", 0, "gaps are no times in order")
    return tuple(zip(found[::2], found[1::2], strict=True))


def _nanoseconds(meta: dict[str, Any], key: str) -> int:
    value: int = _fact(meta, key, int)
    if not 0 <= value < MAX_NS:
        raise FormatError("meta", 0, f"{key} is no time")
    return value
