"""An SFrame writer for tests: all versions, ABIs, byte orders and encodings, independent of the reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pyprof.model.arch import AARCH64, AARCH64_BE, S390X, X86_64, Arch

ABI = {AARCH64_BE.name: 1, AARCH64.name: 2, X86_64.name: 3, S390X.name: 4}
START_CODE = {1: 0, 2: 1, 4: 2}


@dataclass(frozen=True)
class Place:
    """A value: register (DWARF number, or None for the CFA) + offset, or the word at that address if deref is True."""

    register: int | None
    offset: int
    deref: bool = True


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        at: Offset from the function or the block.
        cfa: The CFA, or None for an outermost frame.
        ra: Place of the return address, or None for the default place.
        fp: Place of the frame pointer, or None for the default place.
        mangled: Whether the return address is signed.
        word: Size of the row's offsets in bytes.
    """

    at: int
    cfa: Place | None
    ra: Place | None = None
    fp: Place | None = None
    mangled: bool = False
    word: int = 4


@dataclass(frozen=True)
class Function:
    """A function.

    Attributes:
        start: Address of the function.
        size: Size in bytes.
        rows: Its rows.
        start_size: Size of a row's start in bytes.
        repeat: Size of a repeating block in bytes, or 0.
        key_b: Whether return addresses are signed with key B.
        signal: Whether it is a signal trampoline.
        flex: Whether its rows have FLEX encoding.
    """

    start: int
    size: int
    rows: tuple[Row, ...]
    start_size: int = 4
    repeat: int = 0
    key_b: bool = False
    signal: bool = False
    flex: bool = False


@dataclass(frozen=True)
class Section:
    """A section.

    Attributes:
        flags: Flags of the header. PCREL determines the encoding of starts; SORTED is written as given.
        functions: Functions in the order of the section.
    """

    arch: Arch
    version: int
    svma: int = 0
    flags: int = 1
    fixed_ra: int = 0
    fixed_fp: int = 0
    auxiliary: bytes = b""
    functions: tuple[Function, ...] = field(default=())


def write(section: Section) -> bytes:
    """Return the section's bytes."""
    order = "<" if section.arch.byteorder == "little" else ">"
    layout = struct.Struct(order + {1: "iIIIB", 2: "iIIIBBH", 3: "qII"}[section.version])
    base = 28 + len(section.auxiliary)
    index, rows = b"", b""
    for number, function in enumerate(section.functions):
        origin = section.svma + (base + number * layout.size if section.flags & 4 else 0)
        start, at = function.start - origin, len(rows)
        info = START_CODE[function.start_size] | bool(function.repeat) << 4 | function.key_b << 5
        encoded = b"".join(_row(section, function, row, order) for row in function.rows)
        count = len(function.rows)
        if section.version == 3:
            info |= function.signal << 7
            encoded = struct.pack(order + "HBBB", count, info, function.flex, function.repeat) + encoded
            index += layout.pack(start, function.size, at)
        elif section.version == 2:
            index += layout.pack(start, function.size, at, count, info, function.repeat, 0)
        else:
            index += layout.pack(start, function.size, at, count, info)
        rows += encoded
    head = struct.pack(order + "HBB", 0xDEE2, section.version, section.flags)
    head += struct.pack("BbbB", ABI[section.arch.name], section.fixed_fp, section.fixed_ra, len(section.auxiliary))
    total = sum(len(function.rows) for function in section.functions)
    head += struct.pack(order + "5I", len(section.functions), total, len(rows), 0, len(index))
    return head + section.auxiliary + index + rows


def _row(section: Section, function: Function, row: Row, order: str) -> bytes:
    words = _flex_words(section, row) if function.flex else _default_words(section, row)
    base_is_sp = row.cfa is not None and section.arch.dwarf.get(row.cfa.register or 0) == section.arch.sp
    info = base_is_sp | len(words) << 1 | START_CODE[row.word] << 5 | row.mangled << 7
    start = row.at.to_bytes(function.start_size, section.arch.byteorder)  # type: ignore[arg-type]
    mask = (1 << 8 * row.word) - 1
    kind = {1: "B", 2: "H", 4: "I"}[row.word]
    return start + bytes([info]) + struct.pack(f"{order}{len(words)}{kind}", *(word & mask for word in words))


def _cfa_word(section: Section, offset: int) -> int:
    return (offset - 160) // 8 if section.arch is S390X else offset


def _default_words(section: Section, row: Row) -> list[int]:
    if row.cfa is None:
        return []
    words = [_cfa_word(section, row.cfa.offset)]
    if not section.fixed_ra and (row.ra or row.fp):
        words.append(_default_word(row.ra))
    if row.fp:
        words.append(_default_word(row.fp))
    return words


def _default_word(place: Place | None) -> int:
    if place is None:
        return 0
    return place.offset if place.register is None else place.register << 1 | 1  # odd words are registers on s390x in V2


def _flex_words(section: Section, row: Row) -> list[int]:
    if row.cfa is None:
        return []
    words = [_control(row.cfa), _cfa_word(section, row.cfa.offset)]
    if row.ra:
        words += [_control(row.ra), row.ra.offset]
    elif row.fp:
        words.append(0)
    if row.fp:
        words += [_control(row.fp), row.fp.offset]
    return words


def _control(place: Place) -> int:
    return (place.register or 0) << 3 | place.deref << 1 | (place.register is not None)
