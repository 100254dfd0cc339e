"""The unwind tables of a jitdump's UNWINDING_INFO, in the order and at the address of each writer.

read_tables() takes the record's body, and returns the .eh_frame and the address at which it is assumed to stand.
Sources:
jitdump-specification.txt (.eh_frame_hdr first); tools/perf/util/genelf.c (.eh_frame first, after the code at the next
multiple of 8); V8's perf-jit.cc and CPython's perf_jit_trampoline.c (as genelf); LLVM's PerfSupportPlugin.cpp
(.eh_frame_hdr first, with the address of .eh_frame in memory, for all pieces of code that follow).
"""

from __future__ import annotations

import struct

from pyprof.records import dataclass

SECTION = "jitdump"

_HDR_VERSION = 1
_ABSOLUTE = {0x00, 0x04, 0x0C}
"""Encodings of absolute addresses in .eh_frame: DW_EH_PE_absptr, udata8 and sdata8."""


@dataclass(frozen=True, slots=True)
class JitTables:
    """The unwind tables of a piece of JIT code.

    Attributes:
        eh_frame: The .eh_frame, b"" if there is none.
        avma: Address of the .eh_frame in the process, None if it is placed after the code.
    """

    eh_frame: bytes = b""
    avma: int | None = None

    def assumed_address(self, start: int, size: int) -> int:
        """Return the address at which the unwind tables of a piece of JIT code are assumed to stand."""
        return start + (size + 7 & ~7) if self.avma is None else self.avma

    @property
    def for_next_code(self) -> JitTables:
        """The unwind tables that apply to the next piece of JIT code."""
        return NO_TABLES if self.avma is None else self


NO_TABLES = JitTables()


def read_tables(body: bytes, order: str) -> JitTables:
    """Parse the unwind tables in an UNWINDING_INFO record of a jitdump.

    Args:
        body: The body of the record.
        order: Byte order, "<" or ">".

    Raises:
        struct.error, ValueError: The body is broken.
    """
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
    """Return True if unwind data of a jitdump begins like .eh_frame_hdr.

    An .eh_frame begins with a CIE's length, a multiple of 4, or with 0.
    """
    return len(data) >= 8 and data[0] == _HDR_VERSION and struct.unpack_from(order + "I", data)[0] % 4 != 0
