"""Addresses at which functions of an x86-64 file begin: symbols, unwind tables, the entry point and the code itself.

Direct calls and `lea f(%rip)` name functions that have no symbol. A few bytes of other instructions look like a call.
The analysis of such a start is used only if it leads to a return at the right depth.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.model.columns import distinct, numbered
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
        certain: Starts that a symbol, a table, the entry point or several calls state.
        named: Those, and starts that one call or a `lea` states.
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
        stated = distinct(np.concatenate(found)) if found else np.zeros(0, np.uint64)
        self.certain = set(stated.tolist())
        candidates = [stated, *(ends for _, ends in tables)]
        self.named = set(self.certain)
        for segment in file.loads:
            if segment.executable:
                often, once, loaded = _named_by_code(file, segment)
                self.certain.update(often.tolist())
                self.named.update(*(part.tolist() for part in (often, once, loaded)))
                candidates += [often, once, loaded]
        self.starts: list[int] = distinct(np.concatenate(candidates)).tolist()
        self._file = file
        self._jumps: dict[int, list[int]] | None = None

    def before(self, svma: int) -> int | None:
        """Return the last known start at or below an address, or None."""
        at = bisect_right(self.starts, svma) - 1
        return self.starts[at] if at >= 0 else None

    def after(self, svma: int) -> int | None:
        """Return the first known start above an address, or None."""
        at = bisect_right(self.starts, svma)
        return self.starts[at] if at < len(self.starts) else None

    def jumps_to(self, target: int) -> list[int]:
        """Return the addresses of `jmp rel32` instructions to an address. Other bytes may look like one."""
        if self._jumps is None:
            self._jumps = {}
            for segment in self._file.loads:
                for goes, at in zip(*_jumps(self._file, segment), strict=True) if segment.executable else ():
                    self._jumps.setdefault(goes, []).append(at)
        return self._jumps.get(target, [])


def _jumps(file: ObjectFile, segment: Segment) -> tuple[list[int], list[int]]:
    """Return (targets, addresses) of all `jmp rel32` of a segment to aligned addresses in it."""
    data = np.frombuffer(file.at_svma(segment.vaddr, min(segment.filesz, MAX_SCANNED)), np.uint8)
    at = np.flatnonzero(data[:-4] == 0xE9)
    goes = _distances(data, at + 1) + at + 5
    kept = (goes >= 0) & (goes < len(data)) & (goes % 16 == 0)
    return (goes[kept] + segment.vaddr).tolist(), (at[kept] + segment.vaddr).tolist()


def _distances(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the signed numbers of four bytes at some offsets."""
    found = np.zeros(len(at), np.int64)
    for n in range(4):
        found |= data[at + n].astype(np.int64) << (8 * n)
    return np.where(found >> 31 != 0, found - (1 << 32), found)


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
    kept = _is_any(table["info"] & 15, _FUNCTION_TYPES) & (table["shndx"] != 0)
    if strings is not None:
        cold = _cold_names(strings)
        if len(cold):
            nearest = np.minimum(np.searchsorted(cold, table["name"]), len(cold) - 1)
            kept &= cold[nearest] != table["name"]
    addresses: U64 = table["value"][kept].astype(np.uint64)
    return addresses


def _cold_names(strings: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Return the offsets in a string table of the names that contain ".cold", ascending."""
    ends = np.flatnonzero(np.frombuffer(strings, np.uint8) == 0)
    found = np.array([match.start() for match in _COLD.finditer(strings)], np.int64)
    return np.concatenate([[0], ends + 1])[np.searchsorted(ends, found)]


def _named_by_code(file: ObjectFile, segment: Segment) -> tuple[U64, U64, U64]:
    """Return the addresses in a segment that several calls name, that one call names, and that `lea f(%rip)` names."""
    data = np.frombuffer(file.at_svma(segment.vaddr, min(segment.filesz, MAX_SCANNED)), np.uint8)
    calls = np.flatnonzero(data[:-4] == 0xE8) + 1
    leas = np.flatnonzero((data[1:-5] == 0x8D) & ((data[:-6] | 4) == 0x4C) & ((data[2:-4] & 0xC7) == 5)) + 3
    called, counts = _targets(data, calls, segment)
    return called[counts > 1], called[counts == 1], _targets(data, leas, segment)[0]


def _targets(
    data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], segment: Segment
) -> tuple[U64, npt.NDArray[np.int64]]:
    """Return the addresses to which some distances lead and at which a function may begin, and how often each does."""
    goes = at + 4 + _distances(data, at)
    inside = goes[(goes >= 0) & (goes < len(data)) & (goes != at + 4)]
    found, which = numbered(inside)
    counts = np.bincount(which, minlength=len(found))
    kept = _can_begin(data, found)
    return found[kept].astype(np.uint64) + np.uint64(segment.vaddr), counts[kept]


def _is_any(values: npt.NDArray[np.integer[Any]], wanted: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return which values are among a few numbers. np.isin imports numpy.ma, which takes milliseconds."""
    found = np.zeros(len(values), np.bool_)
    for value in wanted:
        found |= values == value
    return found


def _can_begin(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask of the offsets at which a function may begin: aligned, or after padding or a jump."""
    before, jump = data[np.maximum(at - 1, 0)], data[np.maximum(at - 5, 0)]
    short, ret = data[np.maximum(at - 2, 0)], data[np.maximum(at - 3, 0)]
    found: npt.NDArray[np.bool_] = (
        (at % 16 == 0)
        | _is_any(before, (0xC3, 0xCC, 0x90, 0x00, 0xF4, 0x0B))
        | _is_any(jump, (0xE8, 0xE9))
        | _is_any(short, (0xEB, 0xFF))
        | (ret == 0xC2)
    )
    return found
