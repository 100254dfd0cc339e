"""DWARF's primitive encodings, abbreviations and attribute forms: reading an entry, and skipping it fast.

The readers have time limits. Source: DWARF 5, 7.5.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from pyprof.errors import FormatError


class OutOfTime(Exception):
    """The time limit for resolving names was reached. Everything that was read so far stays valid."""


_STARVED = 5
"""Factor of a deadline's limit of processor time. The product limits the elapsed time before the deadline."""


class Deadline:
    """A time limit in seconds of the thread's processor time, None for no limit. check() raises OutOfTime after it.

    It is processor time, because on a busy machine a thread may wait for a processor for most of a second. The time
    that elapses is limited, too, because files may be slow.
    """

    def __init__(self, seconds: float | None) -> None:
        seconds = math.inf if seconds is None else seconds
        self._elapsed_s = time.monotonic() + seconds
        self._starved_s = self._elapsed_s + (_STARVED - 1) * seconds
        self._processor_s = time.thread_time() + seconds

    def check(self) -> None:
        now = time.monotonic()  # ten times as fast as a read of the thread's time
        if now > self._elapsed_s and (now > self._starved_s or time.thread_time() > self._processor_s):
            raise OutOfTime


class Data:
    """The bytes of one DWARF section, with methods that read values at an offset.

    Each method returns (value, offset after it) and raises FormatError at the end of the section.
    """

    __slots__ = ("byteorder", "bytes", "name")

    def __init__(self, name: str, data: memoryview | None, byteorder: str) -> None:
        self.name = name
        self.bytes = b"" if data is None else bytes(data) if not isinstance(data.obj, bytes) else _whole(data)
        self.byteorder: str = byteorder

    def __len__(self) -> int:
        return len(self.bytes)

    def fixed(self, at: int, size: int) -> tuple[int, int]:
        """Read an unsigned number of `size` bytes in a DWARF section."""
        end = at + size
        if at < 0 or end > len(self.bytes):
            raise FormatError(self.name, max(at, 0), "cut off")
        return int.from_bytes(self.bytes[at:end], "little" if self.byteorder == "little" else "big"), end

    def uleb(self, at: int) -> tuple[int, int]:
        """Read an unsigned LEB128 number in a DWARF section."""
        value = shift = 0
        data = self.bytes
        try:
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    return value, at
                shift += 7
                if shift > 63:
                    raise FormatError(self.name, at, "number of more than 64 bits")
        except IndexError:
            raise FormatError(self.name, at, "cut off") from None

    def sleb(self, at: int) -> tuple[int, int]:
        """Read a signed LEB128 number in a DWARF section."""
        start = at
        value, at = self.uleb(at)
        bits = 7 * (at - start)
        return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at

    def string(self, at: int) -> tuple[bytes, int]:
        """Read a NUL-terminated string in a DWARF section."""
        end = self.bytes.find(b"\0", at) if 0 <= at < len(self.bytes) else -1
        if end < 0:
            raise FormatError(self.name, max(at, 0), "string without end")
        return self.bytes[at:end], end + 1

    def unit_length(self, at: int) -> tuple[int, int, int]:
        """Read a unit length and return (length, size of offsets, offset after it): DWARF 5, 7.4."""
        length, at = self.fixed(at, 4)
        if length == 0xFFFFFFFF:
            length, at = self.fixed(at, 8)
            return length, 8, at
        if length >= 0xFFFFFFF0:
            raise FormatError(self.name, at, "reserved unit length")
        return length, 4, at


def _whole(view: memoryview) -> bytes:
    """Return the bytes object behind a memoryview, without a copy, if the view covers all of it."""
    whole = view.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(view) else bytes(view)


ADDR, STRING, INDIRECT, IMPLICIT_CONST = 0x01, 0x08, 0x16, 0x21
STRP, LINE_STRP, STRP_SUP, GNU_STRP_ALT = 0x0E, 0x1F, 0x1D, 0x1F21
STRX = frozenset({0x1A, 0x25, 0x26, 0x27, 0x28, 0x1F02})
ADDRX = frozenset({0x1B, 0x29, 0x2A, 0x2B, 0x2C, 0x1F01})
REF_UNIT = frozenset({0x11, 0x12, 0x13, 0x14, 0x15})
REF_ADDR, REF_SUP4, REF_SUP8, GNU_REF_ALT, RNGLISTX, SEC_OFFSET = 0x10, 0x1C, 0x24, 0x1F20, 0x23, 0x17

FIXED = {
    0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x19: 0, 0x1C: 4, 0x1E: 16,
    0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4,
}  # fmt: skip
OFFSETS = frozenset({0x0E, 0x17, 0x1D, 0x1F, 0x1F20, 0x1F21})
LEBS = frozenset({0x0D, 0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02})
BLOCKS = {0x0A: 1, 0x03: 2, 0x04: 4, 0x09: 0, 0x18: 0}
"""Size in bytes of the length field of a DWARF block, by the number of the attribute form. It is 0 for a LEB128
length.
"""

SDATA = 0x0D
STEP_LEB, STEP_STRING, STEP_BLOCK, STEP_BLOCK1, STEP_SLOW = -1, -2, -3, -4, -5
MAX_ABBREVS = 1 << 18
MAX_ATTRIBUTES = 1 << 20
"""Maximum number of attributes in one DWARF abbreviation table."""

Attribute = tuple[int, int]
"""Pair (form, raw value) of a DWARF attribute. The raw value is an offset, an index, an address, a constant, or the
offset of the first byte of a string.
"""


class Abbrev(NamedTuple):
    """One abbreviation declaration of .debug_abbrev.

    Attributes:
        tag: DW_TAG.
        children: True if entries have children.
        specs: (attribute, form, implicit constant) of each attribute.
        steps: How to skip an entry's attributes: numbers of bytes, and STEP_* values.
        attributes: The attributes.
    """

    tag: int
    children: bool
    specs: tuple[tuple[int, int, int], ...]
    steps: tuple[int, ...]
    attributes: frozenset[int]


class FormSizes(NamedTuple):
    """The sizes of addresses and offsets in one DWARF unit, and its version. They determine the sizes of its attribute
    forms.
    """

    version: int
    offset_size: int
    address_size: int

    def size(self, form: int) -> int | None:
        """Return the size in bytes of a DWARF attribute form, None if it is not fixed."""
        if form in FIXED:
            return FIXED[form]
        if form == ADDR:
            return self.address_size
        if form in OFFSETS:
            return self.offset_size
        if form == REF_ADDR:
            return self.address_size if self.version == 2 else self.offset_size
        return None


class Abbrevs:
    """One DWARF abbreviation table. Its declarations are decoded up to the requested code, not all at once."""

    def __init__(self, data: Data, at: int, shape: FormSizes) -> None:
        self._data = data
        self._at = at
        self._shape = shape
        self._known: dict[int, Abbrev] = {}
        self._ended = False
        self._attributes = 0

    def __getitem__(self, code: int) -> Abbrev:
        while code not in self._known:
            if self._ended or len(self._known) > MAX_ABBREVS:
                raise FormatError(self._data.name, self._at, f"no abbreviation {code}")
            self._read()
        return self._known[code]

    def _read(self) -> None:
        data, at = self._data, self._at
        code, at = data.uleb(at)
        if code == 0:
            self._ended = True
            return
        tag, at = data.uleb(at)
        children, at = data.fixed(at, 1)
        specs = []
        while True:
            attribute, at = data.uleb(at)
            form, at = data.uleb(at)
            constant = 0
            if form == IMPLICIT_CONST:
                constant, at = data.sleb(at)
            if attribute == 0 and form == 0:
                break
            specs.append((attribute, form, constant))
            self._attributes += 1
            if self._attributes > MAX_ATTRIBUTES:
                raise FormatError(data.name, at, "too many attributes")
        steps = tuple(_steps([form for _, form, _ in specs], self._shape))
        self._known.setdefault(code, Abbrev(tag, bool(children), tuple(specs), steps, frozenset(s[0] for s in specs)))
        self._at = at  # last: if the worker's deadline interrupts this, the declaration is read again


def _steps(forms: list[int], shape: FormSizes) -> list[int]:
    steps: list[int] = []
    for form in forms:
        size = shape.size(form)
        if size is not None:
            if steps and steps[-1] >= 0:
                steps[-1] += size
            else:
                steps.append(size)
        elif form in LEBS:
            steps.append(STEP_LEB)
        elif form == STRING:
            steps.append(STEP_STRING)
        elif form in (0x09, 0x18):
            steps.append(STEP_BLOCK)
        elif form == 0x0A:
            steps.append(STEP_BLOCK1)
        else:
            return [STEP_SLOW]
    return steps


def read_form(data: Data, at: int, form: int, shape: FormSizes) -> tuple[int, int, int]:
    """Read the value of a DWARF attribute and return (form, raw value, offset after it).

    Raises:
        FormatError: The value passes the end, or its form is unknown.
    """
    size = shape.size(form)
    if size is not None:
        value, end = data.fixed(at, size)
        return form, value, end
    if form == SDATA:
        value, end = data.sleb(at)
        return form, value, end
    if form in LEBS:
        value, end = data.uleb(at)
        return form, value, end
    if form == STRING:
        _, end = data.string(at)
        return form, at, end
    if form in BLOCKS:
        length, end = data.fixed(at, BLOCKS[form]) if BLOCKS[form] else data.uleb(at)
        if end + length > len(data):
            raise FormatError(data.name, at, "block past the end")
        return form, end, end + length
    if form == INDIRECT:
        real, end = data.uleb(at)
        if real in (INDIRECT, IMPLICIT_CONST):
            raise FormatError(data.name, at, "indirect form of an indirect form")
        return read_form(data, end, real, shape)
    raise FormatError(data.name, at, f"unknown form {form:#x}")


def read_attributes(data: Data, at: int, abbrev: Abbrev, shape: FormSizes) -> tuple[dict[int, Attribute], int]:
    """Return ((form, raw value) of each attribute, offset after the entry) of a DWARF entry.

    Raises:
        FormatError: The entry is broken.
    """
    found: dict[int, Attribute] = {}
    for attribute, form, constant in abbrev.specs:
        if form == IMPLICIT_CONST:
            found[attribute] = form, constant
        else:
            real, value, at = read_form(data, at, form, shape)
            found[attribute] = real, value
    return found, at
