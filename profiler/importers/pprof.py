"""pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not.

Samples have no times. Of labels pid, tid, thread and process make the thread; others are its labels. Samples with other
labels are those of another thread. A file may have as many labels as samples: then those that come late are left out.
The value that the file names as its default, else the last one, is the primary one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.importers import evidence
from pyprof.importers.builder import NOBODY, About, Builder
from pyprof.importers.protobuf import Field, fields, numbers, packed, repeated, signed
from pyprof.model.labels import RESERVED, Labels
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary

_GZIP = b"\x1f\x8b"
_MOST = 1 << 28
"""Bytes that a file may inflate to."""
_MOST_STACKS, _LONGEST_STACK = 100_000, 1 << 10
"""Stacks that are remembered from file to file, and bytes of one."""
FunctionNames = tuple[str, str, str | None]
"""name, system_name, file."""
FunctionLine = tuple[FunctionNames, int]
MOST_LABELLED = 10_000
"""Different labels together that samples may have."""

SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, STRING, TIME, DURATION, PERIOD, DEFAULT = (
    *(1, 2, 3, 4, 5, 6),
    *(9, 10, 12, 14),
)


def is_one(data: bytes) -> bool:
    return data.startswith(_GZIP) or data[:1] == b"\x0a"


def read(data: bytes, title: str) -> Profile:
    """Raises FormatError."""
    builder = Builder()
    return builder.build(read_into(builder, data, title))


def read_into(
    builder: Builder,
    data: bytes,
    title: str,
    since_ns: int | None = None,
    wanted: Callable[[tuple[ValueType, ...]], bool] = lambda _: True,
) -> About:
    """Samples of one file beside those that the builder has. since_ns: what their times are counted from; None: from
    the file's beginning. wanted: are values of such types? Of a file that is not, or is refused, no sample is added.
    Raises FormatError.
    """
    message = fields(_inflated(data))
    texts = [value for key, value in message if key == STRING and isinstance(value, bytes)]
    strings = [text.decode("utf-8", "surrogateescape") for text in texts]
    if not strings or strings[0]:
        raise FormatError("pprof", 0, "the table of strings does not begin with an empty one")
    return _Reader(message, strings, builder).about(title, since_ns, wanted)


def _inflated(data: bytes) -> bytes:
    if not data.startswith(_GZIP):
        return data
    inflate = zlib.decompressobj(wbits=31)
    try:
        found = inflate.decompress(data, _MOST)
    except zlib.error as error:
        raise FormatError("gzip", 0, str(error)) from None
    if not inflate.eof:
        raise FormatError("gzip", len(found), "it breaks off, or inflates to more than 256 MiB")
    return found


class _Reader:
    def __init__(self, message: Sequence[Field], strings: list[str], builder: Builder) -> None:
        self._strings = strings
        self._rows: dict[int, list[bytes]] = {}
        self._header: dict[int, int] = {}
        for key, value in message:
            if isinstance(value, bytes):
                self._rows.setdefault(key, []).append(value)
            else:
                self._header[key] = value
        self._builder = builder
        self._left_out: set[str] = set()

    def about(self, title: str, since_ns: int | None, wanted: Callable[[tuple[ValueType, ...]], bool]) -> About:
        types = [numbers(row) for row in self._rows.get(SAMPLE_TYPE, ())]
        kinds = [ValueType(self._text(row.get(1, 0)), self._text(row.get(2, 0))) for row in types]
        if not kinds:
            raise FormatError("pprof", 0, "no types of values")
        default = self._text(self._header.get(DEFAULT, 0))
        primary = next((at for at, kind in enumerate(kinds) if kind.type == default), len(kinds) - 1)
        order = [*(at for at in range(len(kinds)) if at != primary), primary]
        start_ns = signed(self._header.get(TIME, 0))
        ordered = tuple(kinds[at] for at in order)
        if wanted(ordered):
            self._samples(self._frames(), order, 0 if since_ns is None else start_ns - since_ns)
        labels = f"; labels left out of some samples: {', '.join(sorted(self._left_out)[:5])}" if self._left_out else ""
        return About(
            title,
            ordered,
            f"Read from a pprof file, whose samples have no times{labels}.",
            start_ns,
            signed(self._header.get(DURATION, 0)),
            signed(self._header.get(PERIOD, 0)),
            evidence.of_summary(self._rows[evidence.FIELD][-1]) if evidence.FIELD in self._rows else Summary(),
        )

    def _text(self, at: int) -> str:
        if at >= len(self._strings):
            raise FormatError("pprof", at, "a text that does not exist")
        return self._strings[at]

    def _mappings(self) -> dict[int, int]:
        """Index of the module by id."""
        found: dict[int, int] = {}
        for row in map(numbers, self._rows.get(MAPPING, ())):
            path, build_id = self._text(row.get(5, 0)), self._text(row.get(6, 0))
            span = row.get(2, 0), row.get(3, 0), row.get(4, 0)
            info = ModuleInfo(path, build_id, *span, bool(row.get(7)), bool(row.get(9)))
            found[row.get(1, 0)] = self._builder.module(info)
        return found

    def _frames(self) -> dict[int, int]:
        """Index of the frame by id of the location."""
        functions: dict[int, FunctionNames] = {}
        for row in map(numbers, self._rows.get(FUNCTION, ())):
            name, system_name, file = (self._text(row.get(at, 0)) for at in (2, 3, 4))
            functions[row.get(1, 0)] = (name or system_name, system_name or name, file or None)
        mappings = self._mappings()
        found: dict[int, int] = {}
        for location in self._rows.get(LOCATION, ()):
            row, lines, found_by = {}, [], b""
            for key, value in fields(location):
                if isinstance(value, int):
                    row[key] = value
                elif key == 4:
                    lines.append(self._line(numbers(value), functions))
                elif key == evidence.FIELD:
                    found_by = value
            module = mappings.get(row.get(2, 0), -1)
            found[row.get(1, 0)] = self._known(row.get(3, 0), module, tuple(lines), found_by)
        return found

    def _line(self, row: dict[int, int], functions: dict[int, FunctionNames]) -> FunctionLine:
        function = functions.get(row.get(1, 0))
        if function is None:
            raise FormatError("pprof", row.get(1, 0), "a function that does not exist")
        return function, max(signed(row.get(2, 0)), 0)

    def _known(self, address: int, module: int, lines: tuple[FunctionLine, ...], found_by: bytes) -> int:
        """The number of a frame. Files of one program have the same ones: they are made once."""
        known = self._builder.known
        key = (address, module, lines, found_by)
        number = known.get(key)
        if number is None:
            number = known[key] = self._builder.frame(self._frame(address, module, lines, found_by))
        return number

    def _frame(self, address: int, module: int, lines: tuple[FunctionLine, ...], found_by: bytes) -> Frame:
        known = self._builder.modules[module] if module >= 0 else None
        rel = (address - known.start) % (1 << 64) if known is not None else 0
        title = f"{known.name}+{rel:#x}" if known is not None else f"{address:#x}"
        kind = FrameKind.NATIVE
        named = tuple(Line(name, system_name, 0, file, line) for (name, system_name, file), line in lines)
        if named and not address and module < 0:
            kind = FrameKind.MARKER if named[-1].function.startswith("[") else FrameKind.INTERPRETER
        title = named[-1].function if named else title
        found = evidence.of_frame(found_by, kind, title)
        shown = () if found.kind is FrameKind.MARKER else named
        return Frame(found.kind, address, address, rel, module, shown, found.trust, title, found.mark)

    def _samples(self, frames: dict[int, int], order: list[int], time_ns: int) -> None:
        locations: list[bytes] = []
        values: list[bytes] = []
        labels: list[tuple[bytes, ...]] = []
        for row in self._rows.get(SAMPLE, ()):
            parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
            for key, value in fields(row):
                if key in parts:
                    parts[key].append(value if isinstance(value, bytes) else packed(value))
            locations.append(b"".join(parts[1]))
            values.append(b"".join(parts[2]))
            labels.append(tuple(parts[3]))
        numbers_of, edges = repeated(locations)
        amounts, begin = repeated(values)
        if (wrong := np.flatnonzero(np.diff(begin) != len(order))).size:
            raise FormatError("pprof", int(wrong[0]), "a sample has more or fewer values than there are types")
        stacks = self._stacks(_looked_up(frames, numbers_of), edges.tolist())
        known: dict[tuple[bytes, ...], int] = {}
        threads = [
            known[row] if row in known else known.setdefault(row, self._thread(row)) for row in map(tuple, labels)
        ]
        columns = amounts.view(np.int64).reshape(-1, len(order))[:, order]
        self._builder.add(stacks, threads, time_ns, columns)

    def _stacks(self, frames: npt.NDArray[np.int32], edges: list[int]) -> list[int]:
        """The node of each stack. frames: of all, innermost first."""
        known, data, found = self._builder.stacks, frames.tobytes(), []
        width = frames.itemsize
        for first, end in pairwise(edges):
            row = data[first * width : end * width]
            node = known.get(row)
            if node is None:
                node = self._builder.stack(frames[first:end][::-1].tolist())
                if len(row) <= _LONGEST_STACK:
                    if len(known) >= _MOST_STACKS:
                        known.clear()
                    known[row] = node
            found.append(node)
        return found

    def _label(self, row: dict[int, int], labels: dict[str, str]) -> None:
        key = self._text(row.get(1, 0))
        labels[key] = self._text(row[2]) if row.get(2) else str(signed(row.get(3, 0)))

    def _thread(self, rows: Iterable[bytes]) -> int:
        labels: dict[str, str] = {}
        for row in rows:
            self._label(numbers(row), labels)
        return self._builder.thread(self._info(labels))

    def _info(self, labels: dict[str, str]) -> ThreadInfo:
        if not labels:
            return NOBODY
        known = self._builder.labels
        own: Labels = tuple(sorted((name, value) for name, value in labels.items() if name not in RESERVED))
        if own not in known and len(known) >= MOST_LABELLED:
            self._left_out |= {name for name, _ in own}
            own = ()
        known.add(own)
        pid, tid = (_number(labels.get(key, "")) for key in ("pid", "tid"))
        return ThreadInfo(pid, tid, labels.get("thread", ""), labels.get("process", ""), labels=own)


def _looked_up(frames: dict[int, int], ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """The frames of locations by their ids. Raises FormatError."""
    keys, indices = np.array(list(frames), np.uint64), np.array(list(frames.values()), np.int32)
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], ids)
    unknown = place >= len(keys)
    unknown[~unknown] = keys[order][place[~unknown]] != ids[~unknown]
    if unknown.any():
        raise FormatError("pprof", int(ids[unknown.argmax()]), "a location that does not exist")
    found: npt.NDArray[np.int32] = indices[order][place]
    return found


def _number(text: str) -> int:
    """0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
