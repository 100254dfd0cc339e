"""Reader of the tables of a pprof file: frames, samples, and the extra fields that exporters/pprof.py writes.

A row of the table of samples has a stack, values and labels. Unknown entries of the extra fields are ignored, because
the input is untrusted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from pyprof.errors import FormatError
from pyprof.importers.profile_builder import Builder, ReadFrame
from pyprof.importers.protobuf import (
    MAX_ROWS,
    pack_number,
    parse_fields,
    parse_numbers,
    read_columns,
    row_sizes,
    to_signed,
)
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo
from pyprof.model.stack_digest import of_frame
from pyprof.model.summary import ModuleSummary, Stops, Summary
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.problem_counters import Problem
from pyprof.recording.upgrades import counter_key, problem_reason

AT_ONCE = 1 << 22
"""Number of bytes of a pprof file's encoded samples that are decoded in one batch."""
_MAX_ROW = 1 << 20
"""Maximum size in bytes of the encoded stack, or of the encoded values, of one pprof sample."""
_STACK, _VALUES, _LABELS = 0x0A, 0x12, 0x1A
"""Tags of fields 1, 2 and 3 of a pprof sample, in the form and order that writers usually use: packed, packed,
messages.
"""
_LEAST, _MORE = 6, 0x80
_UNKNOWN = -1


class Samples:
    """The samples of a pprof file in columns.

    Attributes:
        values: Packed values of each sample.
        tails: Encoded labels of each sample.
        threads: Thread index of each sample.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._joined = b"".join(rows)
        stack_at, values_at, labels_at, ends = _usual(self._joined, rows)
        self._spans = list(zip(stack_at, values_at, strict=True))
        self._unusual: dict[int, bytes] = {}
        joined = self._joined
        self.values = [joined[begin:end] for begin, end in zip(values_at, labels_at, strict=True)]
        self.tails = [joined[begin:end] for begin, end in zip(labels_at, ends, strict=True)]
        self.threads: list[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def stack_keys(self, wanted: Iterable[int]) -> list[bytes]:
        joined, spans, unusual = self._joined, self._spans, self._unusual
        return [unusual[at] if at in unusual else joined[spans[at][0] : spans[at][1] - 2] for at in wanted]

    def set_row(self, at: int, locations: bytes, values: bytes, thread: int) -> None:
        """Set stack, values and thread of a pprof sample whose fields do not have the usual form."""
        self._unusual[at], self.values[at], self.threads[at] = locations, values, thread


def read_samples(rows: Sequence[bytes], thread_of: Callable[[Iterable[bytes]], int]) -> Iterator[Samples]:
    """Yield the samples of a pprof file in batches.

    Args:
        thread_of: Function that returns the thread for labels. The labels are the end of an encoded sample; it is
            called once for each distinct end.

    Raises:
        FormatError: A row is broken.
    """
    known: dict[bytes, int] = {b"": _UNKNOWN}
    for some in _batches(rows):
        found = Samples(some)
        for tail in dict.fromkeys(found.tails):
            if tail not in known:
                labels = parse_fields(tail)
                usual = all(key == 3 and isinstance(value, bytes) for key, value in labels)
                known[tail] = thread_of(value for _, value in labels if isinstance(value, bytes)) if usual else _UNKNOWN
        found.threads = [known[tail] for tail in found.tails]
        if _UNKNOWN in found.threads:
            for at, row in enumerate(some):
                if found.threads[at] == _UNKNOWN:
                    found.set_row(at, *_unusual(row, thread_of))
        yield found


def _unusual(row: bytes, thread_of: Callable[[Iterable[bytes]], int]) -> tuple[bytes, bytes, int]:
    """Decode a pprof sample whose fields have an unusual order or form. Return its packed locations, its packed values
    and its thread.

    Raises:
        FormatError: The row is broken or too large.
    """
    parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for key, value in parse_fields(row):
        if key in parts:
            parts[key].append(value if isinstance(value, bytes) else pack_number(value))
    locations, values = b"".join(parts[1]), b"".join(parts[2])
    if max(len(locations), len(values)) > _MAX_ROW:
        raise FormatError("pprof", 0, f"a stack of more than {_MAX_ROW:,} bytes")
    return locations, values, thread_of(parts[3])


def _batches(rows: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if sum(map(len, rows)) <= AT_ONCE:
        yield rows
        return
    first = held = 0
    for at, row in enumerate(rows):
        if held > AT_ONCE:
            yield rows[first:at]
            first, held = at, 0
        held += len(row)
    yield rows[first:]


def _usual(joined: bytes, rows: Sequence[bytes]) -> list[list[int]]:
    """Find the pprof samples whose fields have the usual form. Return four columns of offsets into `joined`: the
    beginnings of each sample's stack, values and labels, and its end.

    The offsets of a sample are all 0 if its fields do not have the usual form, or if it has no labels.
    """
    sizes = row_sizes(rows)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.frombuffer(joined or b"\0", np.uint8)

    def byte(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return data.take(at, mode="clip").astype(np.int64)

    one, two = byte(starts + 1), byte(starts + 2)
    wide = one >= _MORE
    stack_at = starts + 2 + wide
    values_at = stack_at + np.where(wide, one & _MORE - 1 | two << 7, one) + 2
    size = byte(values_at - 1)
    labels_at = values_at + size
    usual = (sizes >= _LEAST) & (byte(starts) == _STACK) & ~(wide & (two >= _MORE)) & (labels_at < ends)
    usual &= (byte(values_at - 2) == _VALUES) & (size < _MORE) & (byte(labels_at) == _LABELS)
    found: list[list[int]] = (np.stack((stack_at, values_at, labels_at, ends)) * usual).tolist()
    return found


FIELD, STACKS = 1000, 1001
MAX_LACKS = 100
_MAX_NUMBER = 1 << 50
_MAX_COUNTERS = 1000
_LONGEST = 1 << 20
Member = TypeVar("Member", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class FrameEvidence:
    kind: FrameKind
    trust: Trust = Trust.CONTEXT
    mark: Mark | None = None


def read_frame_evidence(row: bytes, kind: FrameKind, title: str) -> FrameEvidence:
    """Read how a frame was found from the extra fields of a pprof location, as exporters/pprof.py writes them.

    Args:
        kind: Kind of the frame if the message does not state it.

    Raises:
        FormatError: The message is broken.
    """
    texts: dict[int, str] = {}
    counts: dict[int, int] = {}
    for key, value in parse_fields(row):
        if isinstance(value, bytes):
            texts[key] = value.decode("ascii", "replace")
        else:
            counts[key] = min(value, _MAX_NUMBER)
    found = _member(FrameKind, texts.get(2, ""), kind)
    trust = _member(Trust, texts.get(1, ""), Trust.CONTEXT)
    if 3 not in texts or found is not FrameKind.MARKER:
        return FrameEvidence(found, trust)
    mark_kind = next((each for each in MarkKind if each.name.lower() == texts[3]), None)
    if mark_kind is None:
        return FrameEvidence(found, trust)
    end = _member(StackEnd, texts.get(4, ""), StackEnd.ROOT)
    enough, unplaced, without_run, lacking = (counts.get(key, 0) for key in (5, 6, 7, 8))
    mark = Mark(mark_kind, end, enough, unplaced, without_run, lacking)
    return FrameEvidence(found, trust, mark.with_name_from_title(title))


def _member(kind: type[Member], name: str, otherwise: Member) -> Member:
    return next((member for member in kind if member.name.lower() == name), otherwise)


def read_summary(text: bytes) -> Summary:
    """Read the summary of a recording from pyprof's own fields of a pprof file.

    Raises:
        FormatError: The text is not JSON.
    """
    try:
        found = orjson.loads(text[:_LONGEST])
    except orjson.JSONDecodeError as error:
        raise FormatError("pprof", error.pos, "what the recording did is no JSON") from None
    whole = _part(found)
    stops, spent = _part(whole.get("stops")), _part(whole.get("processor"))
    found = [(name, count) for name, count in _part(whole.get("errors")).items() if isinstance(count, int)]
    errors: Counter[str] = Counter()
    for name, count in found[:_MAX_COUNTERS]:
        errors[counter_key(name)] += min(max(count, 0), _MAX_NUMBER)
    return Summary(
        rate_wanted=_amount(whole, "rate_wanted"),
        rate_reached=_amount(whole, "rate_reached"),
        skipped=int(_amount(whole, "skipped")),
        errors=dict(errors),
        stops=Stops(
            int(_amount(stops, "count")), *(_amount(stops, f) for f in ("p50_us", "p99_us", "max_us", "share"))
        ),
        unchanged=int(_amount(_part(whole.get("not_stopped")), "unchanged")),
        blocked=int(_amount(_part(whole.get("not_stopped")), "blocked")),
        processor_s=_amount(spent, "spent_s"),
        not_sampled_s=_amount(spent, "not_sampled_s"),
        lost_s=_amount(spent, "lost_s"),
        kernel_s=_amount(spent, "kernel_s"),
        late_s=_amount(spent, "late_s"),
        modules=_modules(whole.get("lacks")),
    )


def _modules(found: object) -> tuple[ModuleSummary, ...]:
    """Return the modules of a recording's summary with the problems that the file states for them."""
    problems: dict[tuple[str, str], list[Problem]] = {}
    for row in found[:MAX_LACKS] if isinstance(found, list) else ():
        if isinstance(row, list) and len(row) in (4, 5) and all(isinstance(text, str) for text in row):
            path, build_id, text, hint, *reason = row
            problem = Problem(text, hint, *(reason or [problem_reason(text)]))
            problems.setdefault((path, build_id), []).append(problem)
    return tuple(ModuleSummary(path, build_id, 0, tuple(each)) for (path, build_id), each in problems.items())


def _part(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _amount(found: Mapping[str, Any], name: str) -> float:
    """Return a number that the summary in a pprof file states, and 0 for a negative number or any other value."""
    value = found.get(name, 0)
    return min(max(value, 0), _MAX_NUMBER) if isinstance(value, int | float) else 0


MAX_LETTERS = 1 << 28
"""Maximum number of characters in the names of all locations of a pprof file. A name counts for each location that has
it.
"""
MAX_MEMORY, _LINE = 1 << 16, 200
"""Maximum estimated size in bytes of a pprof frame that is cached (ReadFrame.memory), and estimated size of a line of a
frame without its texts.
"""
_NUMBER = rb"[\x80-\xff]{0,9}[\0-\x7f]"
_USUAL_LOCATION = re.compile(
    rb"\x08%(n)b(?:\x10%(n)b)?(?:\x18%(n)b)?"
    rb"\x22([\0-\x7f])(\x08%(n)b(?:\x10%(n)b)?)(?:\xc2\x3e([\0-\x7f])(.*))?" % {b"n": _NUMBER},
    re.DOTALL,
)
"""Pattern of an encoded pprof location that has one function and its fields in the usual order. The caller checks the
sizes.
"""
FunctionNames = tuple[str, str, str | None]
"""Names of a pprof function as (name, system_name, file)."""
FunctionLine = tuple[FunctionNames, int]
_HEAD, _ID = (1, 2, 3), 1 << 3
"""Tags of the fields at the beginning of an encoded pprof location: its id, the id of its mapping, its address."""


class FrameTables:
    """The tables of one pprof file from which frames are made: mappings, functions, locations. `strings` is the file's
    table of texts, which may grow until frames are read.
    """

    def __init__(self, builder: Builder, strings: Sequence[str]) -> None:
        self._builder, self._strings = builder, strings
        self._modules: dict[int, int] = {}
        self._places: dict[int, tuple[int, *tuple[str | int, ...]]] = {-1: (0,)}
        self._letters = self._made = 0

    def read_modules(self, mappings: Iterable[bytes]) -> None:
        """Read the mappings of a pprof file as modules. This must happen before frames are read."""
        for row in map(parse_numbers, mappings):
            path, build_id = (text_at(self._strings, row.get(key, 0)) for key in (5, 6))
            span = row.get(2, 0), row.get(3, 0), row.get(4, 0)
            info = ModuleInfo(path, build_id, *span, bool(row.get(7)), bool(row.get(9)))
            module = self._modules[row.get(1, 0)] = self._builder.add_module(info)
            self._places[module] = (info.start - info.offset, path, build_id) if build_id else (0, path, *span)

    def read_frames(
        self, functions: Sequence[bytes], locations: Iterable[bytes], wanted: Container[int] | None
    ) -> dict[int, int]:
        """Read locations of a pprof file as frames, and return the frame numbers by the ids of the locations.

        Args:
            wanted: Ids of the locations to read, None for all.

        Raises:
            FormatError: The tables are broken.
            WorkLimitExceeded: The file exceeds the builder's limits.
        """
        spans: list[tuple[int, int, bytes]] = []
        lines: list[bytes] = []
        heads: list[bytes] = []
        for location in locations:
            if wanted is not None and _id(location) not in wanted:
                continue
            first, found_by = len(lines), b""
            usual = _USUAL_LOCATION.fullmatch(location)
            if usual is not None and len(usual[2]) == usual[1][0] and len(usual[4] or b"") == (usual[3] or b"\0")[0]:
                lines.append(usual[2])
                heads.append(location[: usual.start(1) - 1])
                found_by = usual[4] or b""
            else:
                head = {}
                for key, value in parse_fields(location):
                    if isinstance(value, int):
                        head[key] = value
                    elif key == 4:
                        lines.append(value)
                    elif key == FIELD:
                        found_by = value
                heads.append(b"".join(pack_number(key << 3) + pack_number(head[key]) for key in _HEAD if key in head))
            if len(lines) > MAX_ROWS:
                raise FormatError("pprof", len(lines), f"more than {MAX_ROWS:,} lines of locations")
            spans.append((first, len(lines), found_by))
        return self._numbered(read_columns(heads, _HEAD), self._lines(lines, self._functions(functions)), spans)

    def _functions(self, rows: Sequence[bytes]) -> dict[int, FunctionNames]:
        ids, *texts = read_columns(rows, (1, 2, 3, 4))
        text_at(self._strings, max(map(max, texts)) if ids else 0)
        known_texts = self._strings.__getitem__
        return {
            id_: (name or system_name, system_name or name, file or None)
            for id_, name, system_name, file in zip(ids, *(map(known_texts, column) for column in texts), strict=True)
        }

    def _lines(self, rows: list[bytes], functions: dict[int, FunctionNames]) -> list[FunctionLine]:
        ids, numbers_of = read_columns(rows, (1, 2))
        unknown = next((id_ for id_ in ids if id_ not in functions), None)
        if unknown is not None:
            raise FormatError("pprof", unknown, "a function that does not exist")
        return [(functions[id_], max(to_signed(line), 0)) for id_, line in zip(ids, numbers_of, strict=True)]

    def _numbered(
        self, heads: list[list[int]], lines: list[FunctionLine], spans: list[tuple[int, int, bytes]]
    ) -> dict[int, int]:
        """Return the frame numbers of decoded locations, by location id. New frames are added to the builder.

        Files of one program have the same frames. A frame is created once and identified by its digest. Code of an
        object file with a build ID is identified by its place in the file, wherever a process has mapped it.
        """
        read, known, places = self._builder.read, self._builder.known, self._places
        found: dict[int, int] = {}
        for id_, mapping, address, (first, end, found_by) in zip(*heads, spans, strict=True):
            module = self._modules.get(mapping, -1)
            base, *place = places[module]
            key = (address - base, *place, tuple(lines[first:end]), found_by)
            made = read.get(key)
            if made is None:
                made = self._new(address, module, tuple(lines[first:end]), found_by)
                if made.memory <= MAX_MEMORY:
                    read[key] = made
            number = known.get((made.digest, module))
            if number is None:
                number = self._add(made, module, address)
                if self._builder.met is not None:
                    self._builder.met[key] = made
            found[id_] = number
        return found

    def _add(self, made: ReadFrame, module: int, address: int) -> int:
        self._letters += made.letters
        if self._letters > MAX_LETTERS:
            raise FormatError("pprof", 0, f"names of more than {MAX_LETTERS:,} letters, counted for each location")
        frame = made.frame
        if frame.module != module or frame.pc != address:
            frame = replace(frame, module=module, pc=address, lookup=address)
        number = self._builder.known[made.digest, module] = self._builder.add_frame(frame)
        self._builder.digests.setdefault(number, made.digest)
        return number

    def _new(self, address: int, module: int, lines: tuple[FunctionLine, ...], found_by: bytes) -> ReadFrame:
        self._made += 1
        self._builder.check_work(frames=self._made)
        where = self._builder.modules[module] if module >= 0 else None
        shown = [(name, system_name, file or "", line) for (name, system_name, file), line in lines]
        letters = len(where.path + where.build_id) if where is not None else 0
        letters += sum(len(text) for *texts, _ in shown for text in texts)
        frame = _frame(address, module, where, lines, found_by)
        memory = letters + len(found_by) + _LINE * len(lines)
        return ReadFrame(frame, of_frame(address, where, shown, found_by), letters, memory)


def _frame(
    address: int, module: int, known: ModuleInfo | None, lines: tuple[FunctionLine, ...], found_by: bytes
) -> Frame:
    """Make a frame of the profile from a location of a pprof file. `known` is the module of the location, None for
    none.
    """
    rel = (address - known.start + known.offset) % (1 << 64) if known is not None else 0
    title = f"{known.name}+{rel:#x}" if known is not None else f"{address:#x}"
    kind = FrameKind.NATIVE
    named = tuple(Line(name, system_name, 0, file, line) for (name, system_name, file), line in lines)
    if named and not address and module < 0:
        kind = FrameKind.MARKER if named[-1].function.startswith("[") else FrameKind.INTERPRETER
    title = named[-1].function if named else title
    found = read_frame_evidence(found_by, kind, title)
    shown = () if found.kind is FrameKind.MARKER else named
    return Frame(found.kind, address, address, rel, module, shown, found.trust, title, found.mark)


def text_at(strings: Sequence[str], at: int) -> str:
    """Return the text with this index in a pprof file's string table.

    Raises:
        FormatError: The string does not exist.
    """
    if at >= len(strings):
        raise FormatError("pprof", at, "a text that does not exist")
    return strings[at]


def _id(location: bytes) -> int:
    """Return the id of an encoded pprof Location. In most files it is the first field."""
    if len(location) > 2 and location[0] == _ID:
        if location[1] < 0x80:
            return location[1]
        if location[2] < 0x80:
            return location[1] & 0x7F | location[2] << 7
    return parse_numbers(location).get(1, 0)
