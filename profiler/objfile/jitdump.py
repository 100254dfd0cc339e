"""jitdump: the binary log in which a process writes each piece of code that it makes, with its name, lines and tables.

In: bytes of the file as they come. Out: Loaded and Moved, in the order of the file. The code's bytes are passed over.
Source: tools/perf/Documentation/jitdump-specification.txt of Linux; tools/perf/util/genelf.c for where .eh_frame counts
as standing: behind the code, at the next multiple of 8.

    header    u32 magic "JiTD", version, total_size, elf_mach, pad, pid, u64 timestamp, flags
    record    u32 id, total_size, u64 timestamp, then by id
    LOAD      u32 pid, tid, u64 vma, code_addr, code_size, code_index, name\\0, code
    MOVE      u32 pid, tid, u64 vma, old_code_addr, new_code_addr, code_size, code_index
    DEBUG     u64 code_addr, nr_entry, then u64 addr, u32 line, u32 discriminator, file\\0 ("\\xff\\0": as before)
    UNWINDING u64 unwinding_size, eh_frame_hdr_size, mapped_size, .eh_frame, .eh_frame_hdr
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pyprof.errors import FormatError

SECTION = "jitdump"
MAGIC = 0x4A695444
ARCH_TIMESTAMP = 1
LOAD, MOVE, DEBUG_INFO, CLOSE, UNWINDING_INFO = range(5)

MAX_RECORD = 64 << 20
MAX_NAME = 4096
MAX_LINES = 1 << 16


@dataclass(frozen=True, slots=True)
class Loaded:
    """A piece of code. lines: (avma, file, line), ascending. eh_frame: b"" where there is none.

    time_ns: CLOCK_MONOTONIC, None where the file counts ticks of another clock.
    """

    time_ns: int | None
    start: int
    size: int
    index: int
    name: str
    lines: tuple[tuple[int, str, int], ...] = ()
    eh_frame: bytes = b""

    @property
    def eh_frame_avma(self) -> int:
        """Where the tables count as standing."""
        return self.start + (self.size + 7 & ~7)


@dataclass(frozen=True, slots=True)
class Moved:
    """Code that stands elsewhere now."""

    time_ns: int | None
    old_start: int
    new_start: int
    size: int
    index: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The writer has finished: what was loaded may be gone."""


Record = Loaded | Moved | Closed


class JitdumpReader:
    """Takes the file in pieces; a record that is not complete yet waits for the rest."""

    def __init__(self) -> None:
        self._rest = b""
        self._offset = 0
        self._order = ""
        self._foreign_clock = False
        self._lines: tuple[tuple[int, str, int], ...] = ()
        self._eh_frame = b""

    def read(self, data: bytes) -> list[Record]:
        """The complete records. Raises FormatError where the file breaks its format; there is no reading on."""
        text = self._rest + data
        at = 0
        found: list[Record] = []
        if not self._order:
            at = self._read_header(text)
            if not at:
                self._rest = text
                return found
        head = struct.Struct(self._order + "IIQ")
        while at + head.size <= len(text):
            kind, size, time_ns = head.unpack_from(text, at)
            if not head.size <= size <= MAX_RECORD:
                raise FormatError(SECTION, self._offset + at, f"a record of {size} bytes")
            if at + size > len(text):
                break
            try:
                record = self._record(kind, time_ns, text[at + head.size : at + size])
            except (struct.error, ValueError) as error:
                raise FormatError(SECTION, self._offset + at, f"broken record: {error}") from None
            if record is not None:
                found.append(record)
            at += size
        self._rest = text[at:]
        self._offset += at
        return found

    def _read_header(self, text: bytes) -> int:
        """Size of the header, 0 while it is not complete."""
        if len(text) < 40:
            return 0
        order = next((o for o in "<>" if struct.unpack_from(o + "I", text)[0] == MAGIC), "")
        if not order:
            raise FormatError(SECTION, 0, "not a jitdump file")
        _, version, size, _, _, _, _, flags = struct.unpack_from(order + "IIIIIIQQ", text)
        if version != 1 or not 40 <= size <= 1 << 16:
            raise FormatError(SECTION, 4, f"unknown version {version}, header of {size} bytes")
        if len(text) < size:
            return 0
        self._order, self._foreign_clock = order, bool(flags & ARCH_TIMESTAMP)
        return int(size)

    def _record(self, kind: int, time_ns: int, body: bytes) -> Record | None:
        time = None if self._foreign_clock else min(time_ns, (1 << 63) - 2)
        if kind == LOAD:
            _, _, _, start, size, index = struct.unpack_from(self._order + "IIQQQQ", body)
            name, _ = _text(body, 40)
            lines, self._lines = self._lines, ()
            eh_frame, self._eh_frame = self._eh_frame, b""
            if not size or start + size >= 1 << 64:
                return None
            return Loaded(time, start, size, index, name, lines, eh_frame)
        if kind == MOVE:
            _, _, _, old, new, size, index = struct.unpack_from(self._order + "IIQQQQQ", body)
            return Moved(time, old, new, size, index) if size and new + size < 1 << 64 else None
        if kind == DEBUG_INFO:
            self._lines = tuple(sorted(self._debug_info(body)))
        elif kind == UNWINDING_INFO:
            size, header_size, _ = struct.unpack_from(self._order + "QQQ", body)
            if header_size > size or 24 + size > len(body):
                raise ValueError(f"{size} bytes of unwinding tables")
            self._eh_frame = body[24 : 24 + size - header_size]
        return Closed() if kind == CLOSE else None

    def _debug_info(self, body: bytes) -> list[tuple[int, str, int]]:
        _, count = struct.unpack_from(self._order + "QQ", body)
        entry = struct.Struct(self._order + "QII")
        found: list[tuple[int, str, int]] = []
        at, file = 16, ""
        for _ in range(min(count, MAX_LINES)):
            address, line, _ = entry.unpack_from(body, at)
            text, at = _text(body, at + entry.size)
            file = file if text == "\\xff" else text
            found.append((address, file, line))
        return found


def _text(body: bytes, at: int) -> tuple[str, int]:
    """(the string at an offset, the offset behind it). Raises ValueError."""
    end = body.index(b"\0", at)
    return body[at : min(end, at + MAX_NAME)].decode("utf-8", "backslashreplace"), end + 1
