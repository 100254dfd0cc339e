"""Addresses at which functions of an x86-64 file begin: symbols, unwind tables, the entry point and the code itself.

Direct calls and `lea f(%rip)` name functions that have no symbol. A few bytes of other instructions look like a call.
The analysis of such a start is used only if it leads to a return at the right depth.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.unwind.rules import Extents

MAX_SCANNED = 128 << 20
"""Maximum number of bytes of code that are searched for calls."""

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_FUNCTION_TYPES = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_COLD = re.compile(rb"\.cold")

U64 = npt.NDArray[np.uint64]


class FunctionIndex:
    """The known function starts of one file.

    Attributes:
        starts: All known starts and the ends of the functions of tables, ascending.
        named: Starts that a symbol, a table, the entry point or an instruction states.
    """

    def __init__(self, file: ObjectFile, debug: ObjectFile | None, extents: Iterable[Extents]) -> None:
        """Collect the starts.

        Args:
            file: The file.
            debug: Its separate debug file.
            extents: Start and end addresses of the functions that each unwind table covers.
        """
        tables = list(extents)
        found = [starts for starts, _ in tables]
        for named in (file, debug):
            found += [symbols(named, name) for name in (".symtab", ".dynsym")] if named is not None else []
        if file.entry:
            found.append(np.array([file.entry], np.uint64))
        stated = np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)
        called = [
            targets for segment in file.loads if segment.executable for targets in called_addresses(file, segment)
        ]
        named = np.unique(np.concatenate([stated, *called]))
        self.named = frozenset(named.tolist())
        self.starts: list[int] = np.unique(np.concatenate([named, *(ends for _, ends in tables)])).tolist()

    def before(self, svma: int) -> int | None:
        """Return the last known start at or below an address, or None."""
        at = bisect_right(self.starts, svma) - 1
        return self.starts[at] if at >= 0 else None

    def after(self, svma: int) -> int | None:
        """Return the first known start above an address, or None."""
        at = bisect_right(self.starts, svma)
        return self.starts[at] if at < len(self.starts) else None


def symbols(file: ObjectFile, name: str) -> U64:
    """Return the addresses of the functions in a symbol table, without the cold parts that GCC places apart."""
    none = np.zeros(0, np.uint64)
    try:
        data = file.section(name)
        strings = file.section(".strtab" if name == ".symtab" else ".dynstr")
    except FormatError:
        return none
    if data is None:
        return none
    table = np.frombuffer(data, _SYMBOL, len(data) // _SYMBOL.itemsize)
    kept = np.isin(table["info"] & 15, _FUNCTION_TYPES) & (table["shndx"] != 0)
    if strings is not None:
        kept &= ~np.isin(table["name"], _cold_names(strings))
    return table["value"][kept].astype(np.uint64)


def _cold_names(strings: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Return the offsets in a string table of the names that contain ".cold"."""
    ends = np.flatnonzero(np.frombuffer(strings, np.uint8) == 0)
    found = np.array([match.start() for match in _COLD.finditer(strings)], np.int64)
    return np.concatenate([[0], ends + 1])[np.searchsorted(ends, found)]


def called_addresses(file: ObjectFile, segment: Segment) -> tuple[U64, U64]:
    """Return the targets of direct calls and of `lea f(%rip)` in a segment, as far as they lie in it."""
    data = np.frombuffer(file.at_svma(segment.vaddr, min(segment.filesz, MAX_SCANNED)), np.uint8)
    calls = np.flatnonzero(data[:-4] == 0xE8) + 1
    leas = np.flatnonzero((data[1:-5] == 0x8D) & ((data[:-6] | 4) == 0x4C) & ((data[2:-4] & 0xC7) == 5)) + 3
    return _targets(data, calls, segment), _targets(data, leas, segment)


def _targets(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], segment: Segment) -> U64:
    distance = sum(data[at + n].astype(np.int64) << (8 * n) for n in range(4))
    goes = at + 4 + np.where(distance >> 31 != 0, distance - (1 << 32), distance)
    inside = goes[(goes >= 0) & (goes < len(data)) & (goes != at + 4)]
    found = np.unique(inside)
    return found[_can_begin(data, found)].astype(np.uint64) + np.uint64(segment.vaddr)


def _can_begin(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask of the offsets at which a function may begin: aligned, or after padding or a jump."""
    before, jump = data[np.maximum(at - 1, 0)], data[np.maximum(at - 5, 0)]
    short, ret = data[np.maximum(at - 2, 0)], data[np.maximum(at - 3, 0)]
    return (
        (at % 16 == 0)
        | np.isin(before, (0xC3, 0xCC, 0x90, 0x00, 0xF4, 0x0B))
        | np.isin(jump, (0xE8, 0xE9))
        | np.isin(short, (0xEB, 0xFF))
        | (ret == 0xC2)
    )
