"""CIEs and FDEs of one .eh_frame or .debug_frame section, and their encoded pointers.

Pointers are encoded as LSB Core says ("DWARF Extensions", DW_EH_PE_*). The readers take an offset and return (value,
next offset). They raise IndexError or struct.error at the end of the data and ValueError for invalid data. Their
callers know section and offset, and turn these errors into FormatError.

CfiEntries returns Cie and Fde values with address ranges and instruction bytes. It does not execute instructions.
Sources: DWARF 5, 6.4.1; LSB Core, "Exception Frames"; GNU as and libgcc for their extensions.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field

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

    The result is 0 if the size varies (LEB128, aligned) or the encoding is unknown.
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
    """The file addresses (svma) to which relative pointers in .eh_frame refer.

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


EXTENDED = 0xFFFF_FFFF
"""Length word of a CFI entry in the 64-bit DWARF format. The length follows in 8 bytes."""

_SIZES = {2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Cie:
    """A common information entry, which FDEs share.

    Attributes:
        offset: Offset in the section.
        version: 1, 3 or 4.
        augmentation: The augmentation string.
        address_size: Size of an address in bytes.
        segment_size: Size of a segment selector in bytes.
        code_align: Factor of the operands that advance the location.
        data_align: Factor of the operands that are offsets.
        ra: DWARF number of the return address column.
        encoding: DW_EH_PE encoding of addresses in FDEs.
        sized: True if FDEs state the length of their augmentation data ('z').
        signal: The code is a signal trampoline ('S').
        initial: Instructions that run before those of each FDE.
        initial_offset: Offset of these instructions in the section.
        span: Format of (start, size) in FDEs if both have a fixed size, else None.
    """

    offset: int
    version: int
    augmentation: str
    address_size: int
    segment_size: int
    code_align: int
    data_align: int
    ra: int
    encoding: int
    sized: bool
    signal: bool
    initial: bytes
    initial_offset: int
    span: struct.Struct | None = field(compare=False, repr=False)

    @property
    def program_key(self) -> tuple[object, ...]:
        """A key that is equal for CIEs whose FDEs may share decoded instructions.

        Each compilation unit has its own copy of a CIE.
        """
        return (self.address_size, self.code_align, self.data_align, self.ra, self.signal, self.initial, self.encoding)


class Fde(NamedTuple):
    """A frame description entry: one function.

    Attributes:
        offset: Offset in the section.
        cie: The FDE's CIE.
        start: Start of the function in the file (svma).
        end: Address after the function.
        instructions: Call frame instructions of the FDE.
        instructions_offset: Offset of the instructions in the section.
    """

    offset: int
    cie: Cie
    start: int
    end: int
    instructions: bytes
    instructions_offset: int


@dataclass(frozen=True, slots=True)
class CfiSection:
    """The CIEs and FDEs of one .eh_frame or .debug_frame section.

    Attributes:
        name: Name of the section.
        data: Bytes of the section.
        svma: File address of the first byte.
        eh: The layout is that of .eh_frame, else that of .debug_frame.
        byteorder: "little" or "big".
        address_size: Size of an address, 4 or 8, for CIEs that do not state it.
        bases: Bases of relative pointers.
    """

    name: str
    data: memoryview
    svma: int
    eh: bool
    byteorder: str = "little"
    address_size: int = 8
    bases: Bases = NO_BASES


class CfiEntries:
    """A reader of CIEs and FDEs by their offset. It caches CIEs, because thousands of FDEs share one."""

    def __init__(self, section: CfiSection) -> None:
        self.section = section
        self._order = "<" if section.byteorder == "little" else ">"
        self._head = struct.Struct(self._order + "II")
        self._long = struct.Struct(self._order + "Q")
        self._cies: dict[int, Cie | FormatError] = {}

    def fde(self, offset: int) -> Fde:
        """Return the FDE at an offset of the section.

        Raises:
            FormatError: The offset is not that of an FDE, or the FDE or its CIE is broken.
        """
        try:
            body, end, cie_offset = self._open(offset)
            if cie_offset is None:
                raise ValueError("a CIE where an FDE must stand")
            cie = self.cie(cie_offset)
            return self._fde(offset, cie, body, end)
        except FormatError:
            raise
        except (ValueError, IndexError, struct.error) as error:
            raise FormatError(self.section.name, offset, f"FDE: {error}") from None

    def is_cie(self, offset: int) -> bool:
        """Return True if the CFI entry at an offset is a CIE.

        Raises:
            FormatError: No entry can start there.
        """
        try:
            return self._open(offset)[2] is None
        except (ValueError, IndexError, struct.error) as error:
            raise FormatError(self.section.name, offset, str(error)) from None

    def cie(self, offset: int) -> Cie:
        """Return the CIE at an offset of the section.

        Raises:
            FormatError: The offset is not that of a CIE, or the CIE is broken. The error is cached.
        """
        known = self._cies.get(offset)
        if known is None:
            try:
                known = self._cie(offset)
            except (ValueError, IndexError, struct.error) as error:
                known = FormatError(self.section.name, offset, f"CIE: {error}")
            self._cies[offset] = known
        if isinstance(known, FormatError):
            raise known.with_traceback(None)
        return known

    def _open(self, offset: int) -> tuple[int, int, int | None]:
        """Return (offset after the CIE pointer, end of the entry, offset of its CIE or None if the entry is a CIE) of a
        CFI entry.
        """
        section = self.section
        if not 0 <= offset <= len(section.data):
            raise ValueError("outside the section")
        length, pointer = self._head.unpack_from(section.data, offset)
        at = offset + 4
        wide = length == EXTENDED
        if wide:
            (length,) = self._long.unpack_from(section.data, at)
            at += 8
        end = at + length
        if end > len(section.data):
            raise ValueError(f"length {length:#x} runs past the section")
        if length < 4:
            raise ValueError(f"length {length:#x} is too short")
        # LSB: in .eh_frame this field has 4 bytes in the 64-bit format too, and is a distance back from itself.
        if section.eh:
            if wide:
                pointer = int.from_bytes(section.data[at : at + 4], "little" if self._order == "<" else "big")
            return at + 4, end, at - pointer if pointer else None
        if wide:
            (pointer,) = self._long.unpack_from(section.data, at)
            return at + 8, end, None if pointer == 0xFFFF_FFFF_FFFF_FFFF else pointer
        return at + 4, end, None if pointer == EXTENDED else pointer

    def _cie(self, offset: int) -> Cie:
        section = self.section
        at, end, of = self._open(offset)
        if of is not None:
            raise ValueError("an FDE where a CIE must stand")
        data, version = section.data[:end], section.data[at]
        if version not in (1, 3, 4):
            raise ValueError(f"unknown version {version}")
        augmentation = _letters(data, at + 1)
        at += len(augmentation) + 2
        address_size, segment_size = section.address_size, 0
        if version >= 4:
            address_size, segment_size = data[at], data[at + 1]
            if address_size not in (4, 8):
                raise ValueError(f"addresses of {address_size} bytes")
            at += 2
        if augmentation.startswith("eh"):  # g++ 2: a pointer to exception data
            at += address_size
        code_align, at = read_uleb128(data, at)
        data_align, at = read_sleb128(data, at)
        ra, at = (data[at], at + 1) if version == 1 else read_uleb128(data, at)
        encoding, at = self._augmentation(augmentation, data, at, address_size)
        return Cie(
            offset=offset,
            version=version,
            augmentation=augmentation,
            address_size=address_size,
            segment_size=segment_size,
            code_align=code_align,
            data_align=data_align,
            ra=ra,
            encoding=encoding,
            sized=augmentation.startswith("z"),
            signal="S" in augmentation,
            initial=bytes(data[at:end]),
            initial_offset=at,
            span=self._span(encoding, address_size),
        )

    def _augmentation(self, augmentation: str, data: memoryview, at: int, address_size: int) -> tuple[int, int]:
        """Return (encoding of addresses in FDEs, offset of the initial instructions) by the augmentation of a CIE."""
        sized = augmentation.startswith("z")
        encoding = ABSPTR
        if not sized:
            # GNU as writes letters without data into .debug_frame without a 'z'.
            if augmentation.removeprefix("eh").strip("SBG"):
                raise ValueError(f"unknown augmentation {augmentation!r}")
            return encoding, at
        size, at = read_uleb128(data, at)
        end = at + size
        if end > len(data):
            raise ValueError("augmentation data run past the entry")
        data = data[:end]
        for position, letter in enumerate(augmentation[1:], 1):
            if letter == "R":
                encoding, at = data[at], at + 1
            elif letter == "L":
                at += 1
            elif letter == "P":
                personality, at = data[at], at + 1
                if personality != OMIT:
                    _, at = read_encoded(
                        data,
                        at,
                        personality & ~(INDIRECT | APPLICATION) if personality & APPLICATION != 0x50 else 0x50,
                        address_size=address_size,
                        byteorder=self.section.byteorder,
                        svma=self.section.svma,
                        bases=self.section.bases,
                    )
            elif letter not in "SBG":
                # The size of its data is unknown, so the rest of the data cannot be read. Only 'R' would be needed.
                if "R" in augmentation[position:]:
                    raise ValueError(f"unknown augmentation {augmentation!r}")
                break
        return encoding, end

    def _span(self, encoding: int, address_size: int) -> struct.Struct | None:
        """Return a format of the struct module for the fields (start, size) of an FDE. None unless both have a fixed
        size and are absolute or pc-relative.
        """
        size = pointer_size(encoding, address_size)
        if encoding & ~FORMAT not in (0, PCREL) or size not in _SIZES:
            return None
        letter = _SIZES[size]
        return struct.Struct(self._order + (letter.lower() if encoding & SIGNED else letter) + letter)

    def _fde(self, offset: int, cie: Cie, at: int, end: int) -> Fde:
        section = self.section
        data = section.data
        at += cie.segment_size
        mask = (1 << (8 * cie.address_size)) - 1
        if cie.span is not None:
            start, size = cie.span.unpack_from(data, at)
            if cie.encoding & PCREL:
                start += section.svma + at
            start &= mask
            at += cie.span.size
        else:
            start, at = self._pointer(cie, end, at, cie.encoding)
            size, at = self._pointer(cie, end, at, cie.encoding & FORMAT)
        if cie.sized:
            skip, at = read_uleb128(data, at)
            at += skip
        if at > end:
            raise ValueError("fields run past the entry")
        if start + size > mask + 1:
            raise ValueError(f"range {start:#x}+{size:#x} wraps around")
        return Fde(offset, cie, start, start + size, bytes(data[at:end]), at)

    def _pointer(self, cie: Cie, end: int, at: int, encoding: int) -> tuple[int, int]:
        section = self.section
        return read_encoded(
            section.data[:end],
            at,
            encoding,
            address_size=cie.address_size,
            byteorder=section.byteorder,
            svma=section.svma,
            bases=section.bases,
        )

    def set_loc(self, cie: Cie, code: bytes, at: int, code_offset: int) -> tuple[int, int]:
        """Return (operand of DW_CFA_set_loc, offset after the operand).

        Args:
            cie: The CIE of the instructions.
            code: The instructions.
            at: Offset of the operand in the instructions.
            code_offset: Offset of the instructions in the section.
        """
        section = self.section
        return read_encoded(
            memoryview(code),
            at,
            cie.encoding,
            address_size=cie.address_size,
            byteorder=section.byteorder,
            svma=section.svma + code_offset,
            bases=section.bases,
        )


def _letters(data: memoryview, at: int) -> str:
    """Return the augmentation string of a CIE.

    Raises:
        ValueError: The string has no end.
    """
    zero = bytes(data[at : at + 64]).find(0)
    if zero < 0:
        raise ValueError("augmentation without end")
    return bytes(data[at : at + zero]).decode("latin-1")
