"""The header, the function index and the rows of an SFrame section, V1 to V3.

V1 to V3 are converted to the same columns. read_index() takes the bytes of a section and its file address, and returns
an SFrameIndex sorted by function start. It reads no rows. It only checks that their offsets lie inside the section.

    header   u16 magic 0xdee2 | u8 version | u8 flags | u8 abi | i8 fixed fp | i8 fixed ra | u8 auxiliary length
             u32 functions | u32 rows | u32 length of rows | u32 index offset | u32 rows offset, from header's end
    V1 FDE   i32 start | u32 size | u32 rows | u32 number of rows | u8 info                             (17 bytes)
    V2 FDE   V1 FDE | u8 repeat | u16 padding                                                           (20 bytes)
    V3 FDE   i64 start | u32 size | u32 rows                                                            (16 bytes)
             and before its rows, unaligned: u16 number of rows | u8 info | u8 info2 | u8 repeat         (5 bytes)

Source: SFrame V3, 2.1 to 2.3; V2, 2.1 to 2.3; V1 from binutils 2.40, include/sframe.h.

The data words of one row become a Rule:

    DEFAULT   cfa = sp|fp + word 1; ra = [cfa + fixed] or word 2 tracks it; fp = [cfa + next word] or same
    FLEX      pairs (control, offset) for cfa, ra, fp; control 0 stands alone: the default place
              value = reg + offset (bit 0: register, else cfa) and, with bit 1, the word found there
    no words  outermost frame

Source: SFrame V3, chapter 3; V2 errata 1, chapter 3 (s390x); V2 errata 2 (no words). The order of FLEX words is that of
chapter 3.2 and of every producer; the pseudo-code of appendix A has it wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.unwind.dwarf_expressions import encode_deref, encode_register_plus
from pyprof.unwind.rules import UNDEFINED, RegKind, RegRule, Rule

HEADER = 28
ATTRIBUTE = 5

FLAG_SORTED = 0x1
FLAG_FRAME_POINTER = 0x2  # V1 and V2 only
FLAG_PCREL = 0x4
KNOWN_FLAGS = {1: 0x3, 2: 0x7, 3: 0x5}

AARCH64_BIG, AARCH64_LITTLE, AMD64_LITTLE, S390X_BIG = 1, 2, 3, 4

PLT_BLOCK_V1 = 16
"""Block size in bytes of a PCMASK function in SFrame V1, which does not state it. Its producers emit such functions for
PLT entries only.
"""

_U64 = (1 << 64) - 1
Column = npt.NDArray[Any]
_ENTRY_FIELDS: dict[int, list[tuple[str, str]]] = {
    1: [("start", "i4"), ("size", "u4"), ("rows", "u4"), ("count", "u4"), ("info", "u1")],
    2: [
        ("start", "i4"),
        ("size", "u4"),
        ("rows", "u4"),
        ("count", "u4"),
        ("info", "u1"),
        ("repeat", "u1"),
        ("_", "u2"),
    ],
    3: [("start", "i8"), ("size", "u4"), ("rows", "u4")],
}


@dataclass(frozen=True)
class SFrameIndex:
    """The header of an SFrame section and its n functions, ascending by (start, size).

    Attributes:
        version: 1 to 3.
        flags: Flags of the header.
        byteorder: Byte order of the section.
        abi: SFrame's number of the ABI.
        fixed_fp: Offset of the saved fp from the CFA, 0 if rows track it.
        fixed_ra: Offset of the return address from the CFA, 0 if rows track it.
        start: (n,) uint64, file address (svma) of each function.
        size: (n,) uint32, in bytes.
        rows_at: (n,) int64, section offset of the first row, -1 if it lies outside the section.
        count: (n,) uint32, number of rows.
        info: (n,) uint8, the info byte of each function in the encoding of V3.
        info2: (n,) uint8, the second info byte of V3, 0 in earlier versions.
        repeat: (n,) uint8, block size in bytes of a PCMASK function.
        entry_at: (n,) int64, section offset of the FDE.
        rows_start: Section offset of the rows.
        rows_end: Section offset after the rows.
        oddities: Descriptions of tolerated errors.
    """

    version: int
    flags: int
    byteorder: Literal["little", "big"]
    abi: int
    fixed_fp: int
    fixed_ra: int
    start: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    rows_at: npt.NDArray[np.int64]
    count: npt.NDArray[np.uint32]
    info: npt.NDArray[np.uint8]
    info2: npt.NDArray[np.uint8]
    repeat: npt.NDArray[np.uint8]
    entry_at: npt.NDArray[np.int64]
    rows_start: int
    rows_end: int
    oddities: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)


def _preamble(data: memoryview, broken: Callable[[int, str], FormatError]) -> tuple[str, int, int, int]:
    """Return (byte order for struct, version, flags, abi) of an SFrame section.

    Raises:
        FormatError: The header is invalid.
    """
    if len(data) < HEADER:
        raise broken(len(data), f"section of {len(data)} bytes is shorter than its header")
    order = {b"\xe2\xde": "<", b"\xde\xe2": ">"}.get(bytes(data[:2]))
    if order is None:
        raise broken(0, f"magic is {bytes(data[:2]).hex()}, not dee2 in either byte order")
    version, flags, abi = data[2], data[3], data[4]
    if version not in _ENTRY_FIELDS:
        raise broken(2, f"version {version} is unknown")
    if abi not in (AARCH64_BIG, AARCH64_LITTLE, AMD64_LITTLE, S390X_BIG):
        raise broken(4, f"abi {abi} is unknown")
    if (order == ">") != (abi in (AARCH64_BIG, S390X_BIG)):
        raise broken(4, f"abi {abi} contradicts the byte order of the magic")
    return order, version, flags, abi


def _check_ends(
    size: int, index: tuple[int, int, int], rows: tuple[int, int], broken: Callable[[int, str], FormatError]
) -> None:
    """Check that the index and the rows of an SFrame section lie inside the section.

    Args:
        size: Size of the section in bytes.
        index: (number of functions, offset of the index in the section, bytes per function).
        rows: (size in bytes of all rows, their offset in the section).
        broken: Makes a FormatError from an offset in the header and a message.

    Raises:
        FormatError: The index or the rows pass the section's end.
    """
    functions, at, each = index
    if at + functions * each > size:
        raise broken(8, f"{functions} functions at {at:#x} pass the section's end at {size:#x}")
    if sum(rows) > size:
        raise broken(16, f"{rows[0]} bytes of rows at {rows[1]:#x} pass the section's end at {size:#x}")


def _oddities(flags: int, version: int, more_rows: bool, start: Column) -> tuple[str, ...]:
    oddities: list[str] = []
    if flags & ~KNOWN_FLAGS[version]:
        oddities.append("sframe_flags_unknown")
    if more_rows:
        oddities.append("sframe_row_count_wrong")
    if flags & FLAG_SORTED and bool((start[1:] < start[:-1]).any()):
        oddities.append("sframe_index_not_sorted")
    return tuple(oddities)


def _ascending(start: Column, size: Column) -> Column | slice:
    """Return the indexes of SFrame functions in ascending order by start, then by size."""
    return slice(None) if bool((start[1:] > start[:-1]).all()) else np.lexsort((size, start))


def _described(
    data: memoryview, version: int, order: str, fdes: Column, rows_at: Column, rows_end: int
) -> tuple[Column, Column, Column, Column, Column]:
    """Return (offset of the first row or -1, count, info, info2, repeat) of each SFrame function, as arrays."""
    if version == 3:
        inside = rows_at + ATTRIBUTE <= rows_end
        attribute = _attributes(data, np.where(inside, rows_at, 0), order)
        count, info, info2, repeat = (np.where(inside, column, 0) for column in attribute)
        return np.where(inside, rows_at + ATTRIBUTE, -1), count, info, info2, repeat
    repeat = fdes["repeat"] if version == 2 else np.full(len(fdes), PLT_BLOCK_V1, np.uint8)
    rows_at = np.where(rows_at <= rows_end, rows_at, -1)
    return rows_at, fdes["count"], fdes["info"], np.zeros(len(fdes), np.uint8), repeat


def read_index(data: memoryview, svma: int, section: str = ".sframe") -> SFrameIndex:
    """Read the header and index of an SFrame section.

    The cost is a few numpy passes over the index, independent of the number of rows.

    Args:
        data: Bytes of the section.
        svma: File address of the section.
        section: Name of the section, for errors.

    Raises:
        FormatError: The header or the extent of the index is invalid.
    """

    def broken(offset: int, problem: str) -> FormatError:
        return FormatError(section, offset, problem)

    order, version, flags, abi = _preamble(data, broken)
    fixed_fp, fixed_ra, aux = struct.unpack_from("bbB", data, 5)
    functions, rows, rows_size, index_off, rows_off = struct.unpack_from(order + "5I", data, 8)
    index_at, rows_start = HEADER + aux + index_off, HEADER + aux + rows_off
    entry = np.dtype([(name, (order if kind[1] != "1" else "") + kind) for name, kind in _ENTRY_FIELDS[version]])
    _check_ends(len(data), (functions, index_at, entry.itemsize), (rows_size, rows_start), broken)
    fdes = np.frombuffer(data, entry, functions, index_at)
    entry_at = index_at + np.arange(functions, dtype=np.int64) * entry.itemsize
    origin = (np.uint64(svma & _U64) + entry_at.astype(np.uint64)) if flags & FLAG_PCREL else np.uint64(svma & _U64)
    start = origin + fdes["start"].astype(np.int64).view(np.uint64)  # modulo 2**64, like addresses
    rows_at, rows_end = fdes["rows"].astype(np.int64) + rows_start, rows_start + rows_size
    rows_at, count, info, info2, repeat = _described(data, version, order, fdes, rows_at, rows_end)
    more_rows = int(count.sum(dtype=np.uint64)) > rows
    by = _ascending(start, fdes["size"])
    return SFrameIndex(
        version=version,
        flags=flags,
        byteorder="little" if order == "<" else "big",
        abi=abi,
        fixed_fp=fixed_fp,
        fixed_ra=fixed_ra,
        start=start[by],
        size=np.ascontiguousarray(fdes["size"][by], np.uint32),
        rows_at=rows_at[by],
        count=np.ascontiguousarray(count[by], np.uint32),
        info=np.ascontiguousarray(info[by]),
        info2=np.ascontiguousarray(info2[by], np.uint8),
        repeat=np.ascontiguousarray(repeat[by]),
        entry_at=entry_at[by],
        rows_start=rows_start,
        rows_end=rows_end,
        oddities=_oddities(flags, version, more_rows, start),
    )


def _attributes(data: memoryview, at: npt.NDArray[np.int64], order: str) -> tuple[npt.NDArray[np.integer], ...]:
    """Return (count, info, info2, repeat) of SFrame V3 functions from the five bytes at each section offset."""
    octets = np.frombuffer(data, np.uint8)
    first, second, info, info2, repeat = (octets[at + place] for place in range(ATTRIBUTE))
    low, high = (first, second) if order == "<" else (second, first)
    return low.astype(np.uint32) | high.astype(np.uint32) << 8, info, info2, repeat


FLEX_REGISTER, FLEX_DEREF, FLEX_NUMBER_SHIFT = 1, 2, 3
S390X_CFA_SCALE, S390X_CFA_ADJUSTMENT = 8, 160
MAX_DWARF_REGISTER = 0xFFFF


class RowReader:
    """A decoder of the rows of one SFrame section. Equal rows give the same Rule object."""

    def __init__(self, index: SFrameIndex, arch: Arch, section: str) -> None:
        self._index = index
        self._arch = arch
        self._section = section
        self._order = "<" if index.byteorder == "little" else ">"
        self._s390x = index.abi == S390X_BIG
        self._encoded_registers = self._s390x and index.version < 3
        # SFrame does not describe other registers that the function may have saved. They count as lost, because the
        # rule of an outer frame would otherwise compute with their values in this frame.
        lost = sorted(arch.callee_saved - {arch.sp, arch.fp, arch.pc})
        self._lost = tuple((column, UNDEFINED) for column in lost)
        self._known: dict[tuple[bytes, bool, bool], Rule] = {}

    def outermost(self, signal: bool) -> Rule:
        """Return the unwind rule of a frame that has no caller."""
        return Rule(self._arch.sp, 0, UNDEFINED, (), signal=signal)

    def rule(self, row: bytes, flex: bool, signal: bool, at: int) -> Rule:
        """Decode an SFrame row to an unwind rule.

        Args:
            row: The info byte and the data words.
            flex: The function has the type FLEX.
            signal: The function is a signal trampoline.
            at: Section offset of the row, for errors.

        Raises:
            FormatError: The row is invalid.
        """
        key = (row, flex, signal)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(row, flex, signal, at)
        return found

    def _read(self, row: bytes, flex: bool, signal: bool, at: int) -> Rule:
        info = row[0]
        count = (info >> 1) & 0xF
        if not count:
            return self.outermost(signal)
        size = 1 << (info >> 5 & 3)
        words = struct.unpack(f"{self._order}{count}{'bhxi'[size - 1]}", row[1:])
        read = self._flex if flex else self._default
        return read(words, info, size, signal, at)

    def _default(self, words: tuple[int, ...], info: int, size: int, signal: bool, at: int) -> Rule:
        arch, index = self._arch, self._index
        cfa_reg = arch.sp if info & 1 else arch.fp
        rest = words[1:]
        if index.fixed_ra:
            ra = RegRule(RegKind.AT_CFA, index.fixed_ra)
        else:
            ra = self._saved(rest[0], at) if rest and rest[0] else self._in_link_register(at)
            rest = rest[1:]
        fp = self._saved(rest[0], at) if rest else self._default_fp()
        return self._done(Rule(cfa_reg, self._cfa_offset(words[0]), ra), fp, info, signal)

    def _flex(self, words: tuple[int, ...], info: int, size: int, signal: bool, at: int) -> Rule:
        entities: list[tuple[int, int] | None] = []  # (control, offset) of cfa, ra, fp; None: its default place
        left = list(words)
        while left and len(entities) < 3:
            control = left.pop(0) & ((1 << 8 * size) - 1)
            if control and not left:
                raise FormatError(self._section, at, "control word without its offset word")
            entities.append((control, left.pop(0)) if control else None)
        entities += [None] * (3 - len(entities))
        cfa, ra, fp = entities
        if cfa is None or not cfa[0] & FLEX_REGISTER:
            raise FormatError(self._section, at, "cfa without base register")
        if ra is not None:
            ra_rule = self._flexible(*ra, at)
        elif self._index.fixed_ra:
            ra_rule = RegRule(RegKind.AT_CFA, self._index.fixed_ra)
        else:
            ra_rule = self._in_link_register(at)
        fp_rule = self._default_fp() if fp is None else self._flexible(*fp, at)
        number, deref, offset = self._number(cfa[0], at), bool(cfa[0] & FLEX_DEREF), self._cfa_offset(cfa[1])
        column = self._arch.dwarf.get(number, -1)
        expr = b""
        if column < 0:
            expr = encode_register_plus(number, offset)
            expr = encode_deref(expr) if deref else expr
        rule = Rule(column, 0 if expr else offset, ra_rule, cfa_deref=deref and not expr, cfa_expr=expr)
        return self._done(rule, fp_rule, info, signal)

    def _done(self, rule: Rule, fp: RegRule | None, info: int, signal: bool) -> Rule:
        regs = self._lost if fp is None else (*self._lost, (self._arch.fp, fp))
        pac = bool(info & 0x80)
        return Rule(rule.cfa_reg, rule.cfa_off, rule.ra, regs, rule.cfa_deref, rule.cfa_expr, signal, pac)

    def _cfa_offset(self, word: int) -> int:
        return word * S390X_CFA_SCALE + S390X_CFA_ADJUSTMENT if self._s390x else word

    def _default_fp(self) -> RegRule | None:
        return RegRule(RegKind.AT_CFA, self._index.fixed_fp) if self._index.fixed_fp else None

    def _in_link_register(self, at: int) -> RegRule:
        if self._arch.lr < 0:
            raise FormatError(self._section, at, "return address neither fixed nor tracked, and no link register")
        return RegRule(RegKind.REG_PLUS, 0, self._arch.lr)

    def _saved(self, word: int, at: int) -> RegRule:
        """Return the register rule for a word of ra or fp in a DEFAULT row of SFrame.

        The word is an offset from the CFA, or a register on s390x before V3.
        """
        if self._encoded_registers and word & 1:
            return self._register(word >> 1, 0, False, at)
        return RegRule(RegKind.AT_CFA, word)

    def _flexible(self, control: int, offset: int, at: int) -> RegRule:
        deref = bool(control & FLEX_DEREF)
        if control & FLEX_REGISTER:
            return self._register(self._number(control, at), offset, deref, at)
        return RegRule(RegKind.AT_CFA if deref else RegKind.CFA_PLUS, offset)

    def _number(self, control: int, at: int) -> int:
        number = control >> FLEX_NUMBER_SHIFT
        if number > MAX_DWARF_REGISTER:
            raise FormatError(self._section, at, f"register {number} is unknown")
        return number

    def _register(self, number: int, offset: int, deref: bool, at: int) -> RegRule:
        if number < 0:
            raise FormatError(self._section, at, f"register {number} is unknown")
        column = self._arch.dwarf.get(number)
        if column is None:  # samples lack it (a floating-point register): write a DWARF expression, which fails
            return RegRule(RegKind.AT_EXPR if deref else RegKind.EXPR, expr=encode_register_plus(number, offset))
        return RegRule(RegKind.AT_REG if deref else RegKind.REG_PLUS, offset, column)
