"""The unwind tables of a jitdump's UNWINDING_INFO, in the order and at the address of each writer.

In: the record's body. Out: .eh_frame and where it counts as standing. Source: jitdump-specification.txt (.eh_frame_hdr
first), tools/perf/util/genelf.c (.eh_frame first, behind the code at the next multiple of 8); V8's perf-jit.cc and
CPython's perf_jit_trampoline.c (as genelf); LLVM's PerfSupportPlugin.cpp: .eh_frame_hdr first, with the address where
.eh_frame stands in memory, for all pieces of code that follow.
"""

from __future__ import annotations

import struct

from pyprof.records import dataclass

SECTION = "jitdump"

_HDR_VERSION = 1
_ABSOLUTE = {0x00, 0x04, 0x0C}
"""DW_EH_PE_absptr, udata8, sdata8."""


@dataclass(frozen=True, slots=True)
class JitTables:
    """eh_frame: b"" where there is none. avma: where it stands, None for behind the code."""

    eh_frame: bytes = b""
    avma: int | None = None

    def place(self, start: int, size: int) -> int:
        """Where the tables of a piece of code count as standing."""
        return start + (size + 7 & ~7) if self.avma is None else self.avma

    @property
    def of_next(self) -> JitTables:
        """What is left of them for the code after the one that they precede."""
        return NO_TABLES if self.avma is None else self


NO_TABLES = JitTables()


def read_tables(body: bytes, order: str) -> JitTables:
    """order: "<" or ">". Raises struct.error, ValueError."""
    size, header_size, _ = struct.unpack_from(order + "QQQ", body)
    if header_size > size or 24 + size > len(body):
        raise ValueError(f"{size} bytes of unwinding tables")
    tables = body[24 : 24 + size]
    eh_frame, header = tables[: size - header_size], tables[size - header_size :]
    if _is_header(tables[:header_size], order) and not _is_header(header, order):
        header, eh_frame = tables[:header_size], tables[header_size:]
        if header_size >= 12 and header[1] in _ABSOLUTE:
            return JitTables(eh_frame, struct.unpack_from(order + "Q", header, 4)[0])
    return JitTables(eh_frame)


def _is_header(data: bytes, order: str) -> bool:
    """.eh_frame begins with the length of a CIE, a multiple of 4, or with 0."""
    return len(data) >= 8 and data[0] == _HDR_VERSION and struct.unpack_from(order + "I", data)[0] % 4 != 0
