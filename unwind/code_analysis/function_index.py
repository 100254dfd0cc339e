"""Addresses at which functions of an x86-64 file begin: symbols, unwind tables, the entry point and the code itself.

Direct calls and `lea f(%rip)` name functions that have no symbol. A few bytes of other instructions look like a call.
The analysis of code from such a start is used only if it leads to a return at the right stack depth.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.model.integer_array_operations import distinct, numbered
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.unwind.rules import Extents

MAX_SCANNED = 128 << 20
"""Maximum number of bytes of code that are searched for calls."""
_PIECE = 1 << 20
"""Number of bytes of code that are searched at once. A search needs several times as much memory."""

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_FUNCTION_TYPES = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_LOWEST_FIXED = 0x10000
"""Lowest address of a segment at a fixed address. In such programs (not position-independent), instructions may contain
absolute addresses of functions.
"""

_RELA = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_NO_RETURN = re.compile(
    rb"(?:abort|_?_?exit|_Exit|quick_exit|pthread_exit|__stack_chk_fail|__chk_fail|__assert(?:_perror)?(?:_fail)?"
    rb"|v?errx?|_?(?:sig)?longjmp|__longjmp_chk|__cxa_(?:throw|rethrow|bad_cast|bad_typeid|call_unexpected|pure_virtual"
    rb"|throw_bad_array_(?:new_)?length)|_Unwind_Resume|_ZSt9terminatev|_ZSt10unexpectedv|_ZSt\d+__throw_\w+)\0"
)
"""Pattern of the names of library functions that never return, such as abort and longjmp."""

_COLD = re.compile(rb"\.cold")

_ENDBR64 = b"\xf3\x0f\x1e\xfa"

U64 = npt.NDArray[np.uint64]


class FunctionIndex:
    """The known function starts of one file.

    The lists are arrays of 8 bytes a number: files of 100 MB have some 150,000 starts, and an agent keeps them.

    Attributes:
        starts: All known starts, and the ends of functions that an unwind table states, ascending.
        certain: Starts that a symbol, an unwind table or the entry point states, or that calls state without doubt,
            ascending.
        limits: The certain starts, and the ends of functions that an unwind table states, ascending.
        imported: For the address of each GOT slot of an imported function, whether that function may return.
        named: Starts that are certain, or that a single call or `lea` states, ascending. Starts that the analysis adds
            later are not among them.
    """

    def __init__(self, file: ObjectFile, debug: ObjectFile | None, extents: Iterable[Extents]) -> None:
        """Collect the addresses at which functions of a file begin.

        Args:
            file: The file.
            debug: Its separate debug file.
            extents: Start and end addresses of the functions that each unwind table covers.
        """
        tables = list(extents)
        certain = [starts for starts, _ in tables]
        for each in (file, debug):
            certain += [symbols(each, name) for name in (".symtab", ".dynsym")] if each is not None else []
        if file.entry:
            certain.append(np.array([file.entry], np.uint64))
        guessed: list[U64] = []
        for segment in file.loads:
            if segment.executable:
                often, once, loaded = _named_by_code(file, segment)
                certain.append(often)
                guessed += [once, loaded]
        ends = [ends for _, ends in tables]
        self.certain = ascending(certain)
        self.named = ascending([*certain, *guessed])
        self.starts = ascending([*certain, *guessed, *ends])
        self.limits = ascending([*certain, *ends])
        self.imported = imported_functions(file)
        self._file = file
        self._jumps: tuple[array[int], array[int]] | None = None

    def before(self, svma: int) -> int | None:
        """Return the last known function start at or below an address, or None."""
        at = bisect_right(self.starts, svma) - 1
        return self.starts[at] if at >= 0 else None

    def certain_before(self, svma: int) -> int | None:
        """Return the last address, at or below an address, at which a function certainly starts or ends, or None."""
        at = bisect_right(self.limits, svma) - 1
        return self.limits[at] if at >= 0 else None

    def limit(self, svma: int) -> int | None:
        """Return the first address above an address at which a function certainly starts or ends, or None."""
        at = bisect_right(self.limits, svma)
        return self.limits[at] if at < len(self.limits) else None

    def is_certain(self, start: int) -> bool:
        return is_among(self.certain, start)

    def is_named(self, start: int) -> bool:
        return is_among(self.named, start)

    def add_certain(self, start: int) -> None:
        """Add an address to the certain function starts of the file."""
        if not is_among(self.certain, start):
            insort(self.certain, start)
            insort(self.limits, start)

    def jumps_to(self, target: int) -> list[int]:
        """Return the addresses of all `jmp rel32` instructions that lead to an address. A few of them may be other
        bytes that look like a jump.
        """
        if self._jumps is None:
            self._jumps = _jumps(self._file)
        targets, places = self._jumps
        return places[bisect_left(targets, target) : bisect_right(targets, target)].tolist()


def ascending(found: Iterable[U64]) -> array[int]:
    """Return the distinct numbers of several arrays, ascending."""
    parts = list(found)
    return array("Q", distinct(np.concatenate(parts)).tobytes() if parts else b"")


def is_among(ascending: array[int], number: int) -> bool:
    at = bisect_left(ascending, number)
    return at < len(ascending) and ascending[at] == number


def imported_functions(file: ObjectFile) -> dict[int | None, bool]:
    """Return, for each GOT slot of an imported function, whether that function may return to its caller."""
    found: dict[int | None, bool] = {}
    with suppress(FormatError):
        data, strings = file.section(".dynsym"), bytes(file.section(".dynstr") or b"")
        table = np.frombuffer(data or b"", _SYMBOL, len(data or b"") // _SYMBOL.itemsize)
        names = table["name"].tolist()
        for name in (".rela.plt", ".rela.dyn"):
            relocations = file.section(name) or b""
            rows = np.frombuffer(relocations, _RELA, len(relocations) // _RELA.itemsize)
            for slot, symbol in zip(rows["offset"].tolist(), (rows["info"] >> np.uint64(32)).tolist(), strict=True):
                if 0 < symbol < len(names):
                    found[slot] = not _NO_RETURN.match(strings, names[symbol])
    return found


def _jumps(file: ObjectFile) -> tuple[array[int], array[int]]:
    """Return (targets, addresses of the instructions) of all `jmp rel32` to aligned addresses in the same segment,
    sorted by target.
    """
    targets, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for segment in file.loads:
        if segment.executable:
            data = np.frombuffer(file.at_svma(segment.vaddr, min(segment.filesz, MAX_SCANNED)), np.uint8)
            at = _places(data, 4, 1, lambda opcode: opcode == 0xE9)
            goes = _distances(data, at + 1) + at + 5
            kept = (goes >= 0) & (goes < len(data)) & (goes % 16 == 0)
            targets.append(goes[kept] + segment.vaddr)
            places.append(at[kept] + segment.vaddr)
    target, place = np.concatenate(targets), np.concatenate(places)
    order = np.argsort(target, kind="stable")
    return array("Q", target[order].tobytes()), array("Q", place[order].tobytes())


def _places(
    data: npt.NDArray[np.uint8], behind: int, count: int, matches: Callable[..., npt.NDArray[np.bool_]]
) -> npt.NDArray[np.int64]:
    """Return the offsets in code at which the first bytes of an instruction match a pattern, ascending.

    Args:
        data: The code.
        behind: Number of bytes that must follow the first byte of the instruction.
        count: Number of bytes of the pattern.
        matches: Takes one array per byte of the pattern, each with that byte at all offsets. Returns a mask of the
            offsets that match.
    """
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(data) - behind, _PIECE):
        piece = data[begin : begin + _PIECE + behind]
        found.append(np.flatnonzero(matches(*(piece[n : len(piece) - behind + n] for n in range(count)))) + begin)
    return np.concatenate(found)


def _distances(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the signed 32-bit displacements (operands of calls, jumps and `lea`) at the given offsets of the code."""
    found = np.zeros(len(at), np.int64)
    for n in range(4):
        found |= data[at + n].astype(np.int64) << (8 * n)
    return np.where(found >> 31 != 0, found - (1 << 32), found)


def symbols(file: ObjectFile, name: str) -> U64:
    """Return the start addresses of functions by a symbol table, without the `.cold` parts that GCC places apart from
    their functions.
    """
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
    """Return the presumed function starts to which the instructions `call`, `lea f(%rip)` and `mov $f,%reg` of a
    segment refer.

    Returns:
        Three arrays: the addresses that are certain; those that only one call names; those that `lea` or `mov` name. An
        address is certain if several calls name it, if a call names it and it is aligned and follows the end of other
        code, or if `lea` or `mov` names it and endbr64 is there.
    """
    data = np.frombuffer(file.at_svma(segment.vaddr, min(segment.filesz, MAX_SCANNED)), np.uint8)
    calls = _places(data, 4, 1, lambda opcode: opcode == 0xE8) + 1
    leas = _places(data, 6, 3, lambda rex, opcode, modrm: (opcode == 0x8D) & ((rex | 4) == 0x4C) & (modrm & 0xC7 == 5))
    leas += 3
    called, counts = _targets(data, calls, segment)
    loaded = _targets(data, leas, segment)[0]
    if segment.vaddr >= _LOWEST_FIXED:
        moves = _places(data, 5, 1, lambda opcode: opcode & 0xF8 == 0xB8) + 1
        wide = _places(data, 5, 2, lambda opcode, modrm: (opcode == 0xC7) & (modrm & 0xF8 == 0xC0)) + 2
        goes = _distances(data, np.concatenate([moves, wide])) - segment.vaddr
        loaded = np.concatenate([loaded, _inside(data, goes, segment)[0]])
    at, loaded_at = ((found - np.uint64(segment.vaddr)).astype(np.int64) for found in (called, loaded))
    sure = (counts > 1) | ((at % 16 == 0) & _follows_end(data, at))
    return np.concatenate([called[sure], loaded[_begin_with(data, loaded_at, _ENDBR64)]]), called[~sure], loaded


def _targets(
    data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], segment: Segment
) -> tuple[U64, npt.NDArray[np.int64]]:
    """Return the addresses at which a function may begin and to which displacements in the code refer, and the number
    of references to each.
    """
    goes = at + 4 + _distances(data, at)
    return _inside(data, goes[goes != at + 4], segment)


def _inside(
    data: npt.NDArray[np.uint8], goes: npt.NDArray[np.int64], segment: Segment
) -> tuple[U64, npt.NDArray[np.int64]]:
    """Convert code offsets to the addresses at which a function may begin. Offsets outside the segment are left out.
    Also return the number of occurrences of each address.
    """
    found, which = numbered(goes[(goes >= 0) & (goes < len(data))])
    counts = np.bincount(which, minlength=len(found))
    kept = _can_begin(data, found)
    return found[kept].astype(np.uint64) + np.uint64(segment.vaddr), counts[kept]


def _begin_with(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], text: bytes) -> npt.NDArray[np.bool_]:
    """Return a mask of code offsets that is True at multiples of 16 where the code begins with the given bytes."""
    found: npt.NDArray[np.bool_] = (at % 16 == 0) & (at + len(text) <= len(data))
    for place, byte in enumerate(text):
        found &= data[np.minimum(at + place, len(data) - 1)] == byte
    return found


def _is_any(values: npt.NDArray[np.integer[Any]], wanted: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of an array: True where a value is one of the wanted numbers. np.isin imports numpy.ma, which takes
    milliseconds.
    """
    found = np.zeros(len(values), np.bool_)
    for value in wanted:
        found |= values == value
    return found


def _can_begin(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask of the code offsets at which a function may begin: aligned, or after the end of other code."""
    found: npt.NDArray[np.bool_] = (at % 16 == 0) | _follows_end(data, at)
    return found


def _follows_end(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask of code offsets: True where the code before ends with padding, a return, a jump, a call, hlt or
    ud2.
    """
    before, jump = data[np.maximum(at - 1, 0)], data[np.maximum(at - 5, 0)]
    short, ret = data[np.maximum(at - 2, 0)], data[np.maximum(at - 3, 0)]
    operand = before & 0xC7  # of call *%reg, jmp *%reg, call *(%reg) and jmp *(%reg)
    found: npt.NDArray[np.bool_] = (
        _is_any(before, (0xC3, 0xCC, 0x90, 0x00, 0xF4))
        | ((short == 0x0F) & (before == 0x0B))
        | _is_any(jump, (0xE8, 0xE9))
        | (short == 0xEB)
        | ((short == 0xFF) & _is_any(before & 0x38, (0x10, 0x20)) & ((operand >= 0xC0) | (operand < 4)))
        | (ret == 0xC2)
    )
    return found
