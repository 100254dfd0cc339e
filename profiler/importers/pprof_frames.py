"""Frames of a pprof file, from its tables of mappings, functions and locations."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from pyprof.errors import FormatError
from pyprof.importers import pprof_extra_fields
from pyprof.importers.profile_builder import Builder, ReadFrame
from pyprof.importers.protobuf import MAX_ROWS, pack_number, parse_fields, parse_numbers, read_columns, to_signed
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo
from pyprof.model.stack_digest import of_frame
from pyprof.records import replace

MAX_LETTERS = 1 << 28
"""Maximum number of characters in the names of all locations of a pprof file; a name counts for each location that has
it.
"""
MAX_MEMORY, _LINE = 1 << 16, 200
"""Maximum size in bytes of a pprof frame that is cached (ReadFrame.memory), and estimated size of a line without its
texts.
"""
_NUMBER = rb"[\x80-\xff]{0,9}[\0-\x7f]"
_USUAL_LOCATION = re.compile(
    rb"\x08%(n)b(?:\x10%(n)b)?(?:\x18%(n)b)?"
    rb"\x22([\0-\x7f])(\x08%(n)b(?:\x10%(n)b)?)(?:\xc2\x3e([\0-\x7f])(.*))?" % {b"n": _NUMBER},
    re.DOTALL,
)
"""Pattern of a pprof location with one function and its fields in the usual order. The caller checks the sizes."""
FunctionNames = tuple[str, str, str | None]
"""Names of a pprof function: (name, system_name, file)."""
FunctionLine = tuple[FunctionNames, int]
_HEAD, _ID = (1, 2, 3), 1 << 3
"""Tags of the fields of a pprof location: its id, its mapping's id, its address."""


class FrameTables:
    """The frames of one pprof file; strings is its table of texts, which may grow until frames are read."""

    def __init__(self, builder: Builder, strings: Sequence[str]) -> None:
        self._builder, self._strings = builder, strings
        self._modules: dict[int, int] = {}
        self._places: dict[int, tuple[int, *tuple[str | int, ...]]] = {-1: (0,)}
        self._letters = self._made = 0

    def read_modules(self, mappings: Iterable[bytes]) -> None:
        """Read the mappings of a pprof file; this must happen before frames are read."""
        for row in map(parse_numbers, mappings):
            path, build_id = (text_at(self._strings, row.get(key, 0)) for key in (5, 6))
            span = row.get(2, 0), row.get(3, 0), row.get(4, 0)
            info = ModuleInfo(path, build_id, *span, bool(row.get(7)), bool(row.get(9)))
            module = self._modules[row.get(1, 0)] = self._builder.add_module(info)
            self._places[module] = (info.start - info.offset, path, build_id) if build_id else (0, path, *span)

    def read_frames(
        self, functions: Sequence[bytes], locations: Iterable[bytes], wanted: Container[int] | None
    ) -> dict[int, int]:
        """Return frame numbers by the ids of a pprof file's locations.

        Args:
            wanted: Ids of locations, None for all.

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
                    elif key == pprof_extra_fields.FIELD:
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
        """Return frame numbers by location id for locations whose lines have been read.

        Files of one program have the same frames. Each is made once and identified by its digest. Code of a file with a
        build ID is identified by its place in the file, independent of where a process has mapped it.
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
    """Make a frame of the profile from a function or address of a pprof file; known is its module."""
    rel = (address - known.start + known.offset) % (1 << 64) if known is not None else 0
    title = f"{known.name}+{rel:#x}" if known is not None else f"{address:#x}"
    kind = FrameKind.NATIVE
    named = tuple(Line(name, system_name, 0, file, line) for (name, system_name, file), line in lines)
    if named and not address and module < 0:
        kind = FrameKind.MARKER if named[-1].function.startswith("[") else FrameKind.INTERPRETER
    title = named[-1].function if named else title
    found = pprof_extra_fields.read_frame_evidence(found_by, kind, title)
    shown = () if found.kind is FrameKind.MARKER else named
    return Frame(found.kind, address, address, rel, module, shown, found.trust, title, found.mark)


def text_at(strings: Sequence[str], at: int) -> str:
    """Return a text of a pprof file's string table.

    Raises:
        FormatError: The string does not exist.
    """
    if at >= len(strings):
        raise FormatError("pprof", at, "a text that does not exist")
    return strings[at]


def _id(location: bytes) -> int:
    """Return the id of a pprof Location message, which is usually its first field."""
    if len(location) > 2 and location[0] == _ID:
        if location[1] < 0x80:
            return location[1]
        if location[2] < 0x80:
            return location[1] & 0x7F | location[2] << 7
    return parse_numbers(location).get(1, 0)
