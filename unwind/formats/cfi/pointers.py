"""LEB128 numbers and the encoded pointers of .eh_frame (LSB Core, "DWARF Extensions", DW_EH_PE_*).

The readers take an offset and return (value, next offset). They raise IndexError or struct.error at the end of the data
and ValueError for invalid data. Their callers know section and offset, and turn these errors into FormatError.
"""

from __future__ import annotations

from typing import Literal

from pyprof.records import dataclass

ABSPTR, ULEB128, UDATA2, UDATA4, UDATA8 = 0x00, 0x01, 0x02, 0x03, 0x04
SIGNED, SLEB128, SDATA2, SDATA4, SDATA8 = 0x08, 0x09, 0x0A, 0x0B, 0x0C
PCREL, TEXTREL, DATAREL, FUNCREL, ALIGNED = 0x10, 0x20, 0x30, 0x40, 0x50
INDIRECT = 0x80
OMIT = 0xFF

FORMAT = 0x0F
APPLICATION = 0x70

LEB_BYTES = 10
"""Maximum size in bytes of a LEB128 number. 64 bits need no more, and a longer one in a hostile file would be huge."""


def read_uleb128(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned LEB128 number of at most 64 bits."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    for i in range(at + 1, at + LEB_BYTES):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, i + 1
        shift += 7
    raise ValueError("LEB128 number of more than 64 bits")


def read_sleb128(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read a signed LEB128 number of at most 64 bits."""
    value = shift = 0
    for i in range(at, at + LEB_BYTES):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if byte & 0x40:
                value -= 1 << shift
            return to_signed64(value), i + 1
    raise ValueError("LEB128 number of more than 64 bits")


def to_signed64(value: int) -> int:
    """Return the value modulo 2**64 as a signed number, which fits an int64 column."""
    return ((value + (1 << 63)) & 0xFFFF_FFFF_FFFF_FFFF) - (1 << 63)


def pointer_size(encoding: int, address_size: int) -> int:
    """Return the size in bytes of an .eh_frame pointer with this encoding.

    It is 0 if the size varies (LEB128, aligned) or the encoding is unknown.
    """
    if encoding & APPLICATION == ALIGNED:
        return 0
    return {
        ABSPTR: address_size,
        SIGNED: address_size,
        UDATA2: 2,
        SDATA2: 2,
        UDATA4: 4,
        SDATA4: 4,
        UDATA8: 8,
        SDATA8: 8,
    }.get(encoding & FORMAT, 0)


@dataclass(frozen=True, slots=True)
class Bases:
    """File addresses (svma) that relative pointers in .eh_frame are relative to.

    Attributes:
        text: Start of .text.
        data: The GOT, or the .eh_frame_hdr for pointers in it.
    """

    text: int = 0
    data: int = 0


NO_BASES = Bases()


def read_encoded(
    data: memoryview,
    at: int,
    encoding: int,
    *,
    address_size: int,
    byteorder: str,
    svma: int,
    bases: Bases,
) -> tuple[int, int]:
    """Read an encoded .eh_frame pointer as a file address (svma), modulo the address size.

    Args:
        data: Bytes of the section.
        at: Offset of the pointer.
        encoding: Its DW_EH_PE encoding.
        address_size: Size of an address in bytes.
        byteorder: "little" or "big".
        svma: File address of data[0].
        bases: Bases of relative pointers.

    Raises:
        ValueError: The pointer is omitted, indirect or function-relative, which needs more than the file.
    """
    if encoding == OMIT or encoding & INDIRECT:
        raise ValueError(f"pointer encoding {encoding:#x} where an address must stand")
    application = encoding & APPLICATION
    if application == ALIGNED:
        at += -(svma + at) % address_size
        encoding = ABSPTR
    field = at
    kind = encoding & FORMAT
    if kind == ULEB128:
        value, at = read_uleb128(data, at)
    elif kind == SLEB128:
        value, at = read_sleb128(data, at)
    else:
        size = pointer_size(encoding, address_size)
        if not size:
            raise ValueError(f"unknown pointer encoding {encoding:#x}")
        if at + size > len(data):
            raise IndexError("pointer past the end")
        order: Literal["little", "big"] = "little" if byteorder == "little" else "big"
        value = int.from_bytes(data[at : at + size], order, signed=bool(kind & SIGNED))
        at += size
    if application == PCREL:
        value += svma + field
    elif application == TEXTREL:
        value += bases.text
    elif application == DATAREL:
        value += bases.data
    elif application not in (0, ALIGNED):
        raise ValueError(f"pointer encoding {encoding:#x} where an address must stand")
    return value & ((1 << (8 * address_size)) - 1), at
