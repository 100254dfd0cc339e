"""Abbreviations and attribute forms: reading an entry, and skipping it fast. DWARF 5, 7.5."""

from __future__ import annotations

from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.symbolize.dwarf.cursor import Data

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
"""Size in bytes of the length before a DWARF block, 0 for LEB128, by form."""

SDATA = 0x0D
STEP_LEB, STEP_STRING, STEP_BLOCK, STEP_BLOCK1, STEP_SLOW = -1, -2, -3, -4, -5
MAX_ABBREVS = 1 << 18
MAX_ATTRIBUTES = 1 << 20
"""Maximum number of attributes in one DWARF abbreviation table."""

Attribute = tuple[int, int]
"""Value of a DWARF attribute (form, raw value): an offset, an index, an address, a constant, or the offset of the first
byte of a string.
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
    """The properties of a DWARF unit that determine the sizes of its forms."""

    version: int
    offset_size: int
    address_size: int

    def size(self, form: int) -> int | None:
        """Return the size in bytes of a DWARF form, None if it is not fixed."""
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
    """A DWARF abbreviation table that is read up to the requested code."""

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
        self._at = at
        steps = tuple(_steps([form for _, form, _ in specs], self._shape))
        self._known.setdefault(code, Abbrev(tag, bool(children), tuple(specs), steps, frozenset(s[0] for s in specs)))


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
