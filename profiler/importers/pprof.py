"""pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not.

Samples have no times. Of labels pid, tid, thread and process make the thread; others are its labels. Samples with other
labels are those of another thread. A file may have as many labels as samples: then those that come late are left out.
The value that the file names as its default, else the last one, is the primary one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from pyprof.errors import FormatError
from pyprof.importers.builder import NOBODY, About, Builder
from pyprof.importers.protobuf import Field, fields, numbers, repeated, signed
from pyprof.model.labels import RESERVED, Labels
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.walk import Trust
from pyprof.records import dataclass

_GZIP = b"\x1f\x8b"
_MOST = 1 << 28
"""Bytes that a file may inflate to."""
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
    message = list(fields(_inflated(data)))
    texts = [value for key, value in message if key == STRING and isinstance(value, bytes)]
    strings = [text.decode("utf-8", "surrogateescape") for text in texts]
    if not strings or strings[0]:
        raise FormatError("pprof", 0, "the table of strings does not begin with an empty one")
    return _Reader(message, strings).profile(title)


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


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    system_name: str
    file: str | None


class _Reader:
    def __init__(self, message: Sequence[Field], strings: list[str]) -> None:
        self._strings = strings
        self._rows: dict[int, list[bytes]] = {}
        self._header: dict[int, int] = {}
        for key, value in message:
            if isinstance(value, bytes):
                self._rows.setdefault(key, []).append(value)
            else:
                self._header[key] = value
        self._builder = Builder()
        self._labels: set[Labels] = set()
        self._left_out: set[str] = set()

    def profile(self, title: str) -> Profile:
        types = [numbers(row) for row in self._rows.get(SAMPLE_TYPE, ())]
        kinds = [ValueType(self._text(row.get(1, 0)), self._text(row.get(2, 0))) for row in types]
        if not kinds:
            raise FormatError("pprof", 0, "no types of values")
        default = self._text(self._header.get(DEFAULT, 0))
        primary = next((at for at, kind in enumerate(kinds) if kind.type == default), len(kinds) - 1)
        order = [*(at for at in range(len(kinds)) if at != primary), primary]
        self._samples(self._frames(), order)
        labels = f"; labels left out of some samples: {', '.join(sorted(self._left_out)[:5])}" if self._left_out else ""
        about = About(
            title,
            tuple(kinds[at] for at in order),
            f"Read from a pprof file, whose samples have no times{labels}.",
            signed(self._header.get(TIME, 0)),
            signed(self._header.get(DURATION, 0)),
            signed(self._header.get(PERIOD, 0)),
        )
        return self._builder.build(about)

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
            found[row.get(1, 0)] = len(self._builder.modules)
            self._builder.modules.append(ModuleInfo(path, build_id, *span, bool(row.get(7)), bool(row.get(9))))
        return found

    def _frames(self) -> dict[int, int]:
        """Index of the frame by id of the location."""
        functions: dict[int, _Function] = {}
        for row in map(numbers, self._rows.get(FUNCTION, ())):
            name, system_name, file = (self._text(row.get(at, 0)) for at in (2, 3, 4))
            functions[row.get(1, 0)] = _Function(name or system_name, system_name or name, file or None)
        mappings = self._mappings()
        found: dict[int, int] = {}
        for location in self._rows.get(LOCATION, ()):
            row, lines = {}, []
            for key, value in fields(location):
                if isinstance(value, int):
                    row[key] = value
                elif key == 4:
                    lines.append(self._line(numbers(value), functions))
            module = mappings.get(row.get(2, 0), -1)
            frame = self._frame(row.get(3, 0), module, tuple(lines))
            found[row.get(1, 0)] = self._builder.frame(frame)
        return found

    def _line(self, row: dict[int, int], functions: dict[int, _Function]) -> Line:
        function = functions.get(row.get(1, 0))
        if function is None:
            raise FormatError("pprof", row.get(1, 0), "a function that does not exist")
        return Line(function.name, function.system_name, 0, function.file, max(signed(row.get(2, 0)), 0))

    def _frame(self, address: int, module: int, lines: tuple[Line, ...]) -> Frame:
        known = self._builder.modules[module] if module >= 0 else None
        rel = (address - known.start) % (1 << 64) if known is not None else 0
        title = f"{known.name}+{rel:#x}" if known is not None else f"{address:#x}"
        kind = FrameKind.NATIVE
        if lines and not address and module < 0:
            kind = FrameKind.MARKER if lines[-1].function.startswith("[") else FrameKind.INTERPRETER
        title = lines[-1].function if lines else title
        shown = () if kind is FrameKind.MARKER else lines
        return Frame(kind, address, address, rel, module, shown, Trust.CONTEXT, title)

    def _samples(self, frames: dict[int, int], order: list[int]) -> None:
        for row in self._rows.get(SAMPLE, ()):
            locations: list[int] = []
            values: list[int] = []
            labels: dict[str, str] = {}
            for key, value in fields(row):
                if key == 1:
                    locations += repeated(value)
                elif key == 2:
                    values += map(signed, repeated(value))
                elif key == 3 and isinstance(value, bytes):
                    self._label(numbers(value), labels)
            if len(values) != len(order):
                raise FormatError("pprof", len(values), "a sample has more or fewer values than there are types")
            unknown = [location for location in locations if location not in frames]
            if unknown:
                raise FormatError("pprof", unknown[0], "a location that does not exist")
            stack = self._builder.stack(frames[location] for location in reversed(locations))
            self._builder.sample(stack, [values[at] for at in order], self._thread(labels))

    def _label(self, row: dict[int, int], labels: dict[str, str]) -> None:
        key = self._text(row.get(1, 0))
        labels[key] = self._text(row[2]) if row.get(2) else str(signed(row.get(3, 0)))

    def _thread(self, labels: dict[str, str]) -> ThreadInfo:
        if not labels:
            return NOBODY
        own: Labels = tuple(sorted((name, value) for name, value in labels.items() if name not in RESERVED))
        if own not in self._labels and len(self._labels) >= MOST_LABELLED:
            self._left_out |= {name for name, _ in own}
            own = ()
        self._labels.add(own)
        pid, tid = (_number(labels.get(key, "")) for key in ("pid", "tid"))
        return ThreadInfo(pid, tid, labels.get("thread", ""), labels.get("process", ""), labels=own)


def _number(text: str) -> int:
    """0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
