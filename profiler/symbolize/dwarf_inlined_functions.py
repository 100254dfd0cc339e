"""The functions that were inlined at an address, and the qualified names of functions.

Inlined functions are DW_TAG_inlined_subroutine entries (DWARF 5, 3.3.8).

A function without a linkage name is named by its scopes: the namespaces, classes and functions around it. GCC emits no
linkage name for functions that other files cannot call: static functions, lambdas, members of local classes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.symbolize import dwarf_attribute_forms as f
from pyprof.symbolize.dwarf_attribute_forms import Deadline
from pyprof.symbolize.dwarf_units import HIGH_PC, LANGUAGE, LOW_PC, RANGES, SIBLING, Ranges, Unit, skip_attributes

NAMESPACE, SUBPROGRAM = 0x39, 0x2E
SCOPES = frozenset({0x02, 0x13, 0x17, NAMESPACE, SUBPROGRAM})
"""DWARF tags of scopes: classes, structures, unions, namespaces and functions."""
MAX_SCOPES = 32


class Scopes:
    """The scopes of one DWARF unit (namespaces, classes, functions), from one pass over it. The methods raise
    FormatError and OutOfTime.
    """

    def __init__(self, unit: Unit, deadline: Deadline) -> None:
        self._unit = unit
        self._parent: dict[int, int] = {}
        self._namespaces: set[int] = set()
        self._read(deadline)

    def qualify_name(self, offset: int, name: bytes) -> bytes:
        """Return the name of the DWARF function at an offset with its scopes (namespaces, classes) before it."""
        parts = [name]
        for _ in range(MAX_SCOPES):
            offset = self._parent.get(offset, -1)
            entry = self._unit.entry(offset) if offset >= 0 else None
            if entry is None:
                break
            scope, is_whole, _ = self._unit.function(entry[1])
            parts.append(scope or self._unnamed(offset, parts[-1]))
            if is_whole:  # a linkage name has its scopes
                break
        return b"::".join(reversed(parts))

    def _unnamed(self, offset: int, member: bytes) -> bytes:
        """Return the text that demanglers write for an unnamed namespace, class or function."""
        if offset in self._namespaces:
            return b"(anonymous namespace)"
        return b"{lambda}" if member == b"operator()" else b"{unnamed}"

    def _read(self, deadline: Deadline) -> None:
        unit = self._unit
        info = unit.info
        around: list[int] = []
        scope = -1
        at, count = unit.die, 0
        while at < unit.end:
            count += 1
            if not count & 0xFFF:
                deadline.check()
            offset = at
            code, at = info.uleb(at)
            if code == 0:
                if not around:
                    break
                scope = around.pop()
                continue
            abbrev = unit.abbrevs[code]
            inside = scope
            if abbrev.tag in SCOPES:
                self._parent[offset] = scope
                inside = offset
                if abbrev.tag == NAMESPACE:
                    self._namespaces.add(offset)
            at = skip_attributes(unit, at, abbrev)
            if abbrev.children:
                around.append(scope)
                scope = inside


SUBPROGRAM_TAG, INLINED = 0x2E, 0x1D
CALL_FILE, CALL_LINE = 0x58, 0x59
TYPES = frozenset({0x01, 0x02, 0x04, 0x13, 0x15, 0x17})
"""DWARF tags of types: arrays, classes, enumerations, structures, subroutine types and unions.

In C and C++ such a type has code among its children only if it is declared in a function: GCC puts the code of a lambda
and of a local class's member functions there.
"""
C_FAMILY = frozenset({0x01, 0x02, 0x04, 0x0C, 0x1A, 0x1D, 0x21, 0x2B, 0x2C})
CXX = frozenset({0x04, 0x1A, 0x21, 0x2B, 0x3A, 0x3B})
MAX_DEPTH = 4096
MAX_OVERLAP = 16


@dataclass(slots=True)
class Subprogram:
    """A DW_TAG_subprogram entry with code.

    Attributes:
        offset: Offset of the entry.
        inlined: (offset, index of the enclosing inlined entry or -1) of each inlined entry, parents first.
        decoded: The inlined calls, None until they are decoded.
    """

    offset: int
    inlined: list[tuple[int, int]] = field(default_factory=list)
    decoded: list[Inlined] | None = None


class Inlined(NamedTuple):
    """A DW_TAG_inlined_subroutine entry: a call that was inlined.

    Attributes:
        ranges: Its address ranges in the file.
        parent: Index of the enclosing inlined call, or -1.
        name: Name of the function, in the form of the symbol table.
        call_file: Number of the caller's file in the unit's line table.
        call_line: Line of the call.
    """

    ranges: Ranges
    parent: int
    name: bytes
    call_file: int
    call_line: int


class Inlines:
    """The functions of one DWARF unit with their inlined calls. The methods raise FormatError and OutOfTime."""

    def __init__(self, unit: Unit, deadline: Deadline) -> None:
        self._unit = unit
        self._scopes: dict[Unit, Scopes] = {}
        self._functions: list[tuple[int, int, Subprogram]] = []
        for function in _functions(unit, deadline):
            deadline.check()
            entry = unit.entry(function.offset)
            for start, end in unit.ranges(entry[1]) if entry else ():
                self._functions.append((start, end, function))
        self._functions.sort(key=lambda item: (item[0], -item[1]))
        self._starts = [start for start, _, _ in self._functions]

    def functions(self) -> Iterator[tuple[int, int, Subprogram]]:
        """Yield (start, end, function) of the DWARF unit's functions, ascending. A function in several parts occurs
        once for each part.
        """
        yield from self._functions

    def name(self, function: Subprogram, deadline: Deadline) -> bytes:
        """Return the name of a DWARF function in the form of the symbol table.

        Raises:
            FormatError: An entry is broken.
        """
        entry = self._unit.entry(function.offset)
        return self._name(entry[1], deadline) if entry else b""

    def calls(self, function: Subprogram, deadline: Deadline) -> list[Inlined]:
        """Return all calls that were inlined into a DWARF function, parents first.

        Raises:
            FormatError: An entry is broken.
        """
        if function.decoded is None:
            decoded = []
            for offset, parent in function.inlined:
                deadline.check()
                decoded.append(self._decode(offset, parent, deadline))
            function.decoded = decoded
        return function.decoded

    def find(self, svma: int, deadline: Deadline) -> tuple[bytes, list[Inlined]]:
        """Return (name of the outer function, inlined calls from the outermost to the innermost) at a file address,
        from DWARF.
        """
        at = bisect_right(self._starts, svma)
        near = reversed(self._functions[max(0, at - MAX_OVERLAP) : at])
        function = next((function for _, end, function in near if svma < end), None)
        if function is None:
            return b"", []
        chain: list[Inlined] = []
        last = -1
        for index, inlined in enumerate(self.calls(function, deadline)):
            if inlined.parent == last and any(start <= svma < end for start, end in inlined.ranges):
                chain.append(inlined)
                last = index
        entry = self._unit.entry(function.offset)
        return self._unit.plain_name(entry[1]) if entry else b"", chain

    def _decode(self, offset: int, parent: int, deadline: Deadline) -> Inlined:
        unit = self._unit
        entry = unit.entry(offset)
        if entry is None:
            raise FormatError(unit.info.name, offset, "no entry")
        attributes = entry[1]
        return Inlined(
            unit.ranges(attributes),
            parent,
            self._name(attributes, deadline),
            unit.constant(attributes, CALL_FILE),
            unit.constant(attributes, CALL_LINE),
        )

    def _name(self, attributes: dict[int, f.Attribute], deadline: Deadline) -> bytes:
        """Return the linkage name of a DWARF entry, else the name with its scopes."""
        name, linkage, declared = self._unit.function(attributes)
        if linkage or declared is None or self._unit.constant(self._unit.top, LANGUAGE) not in CXX:
            return name
        unit, offset = declared
        if unit not in self._scopes:
            self._scopes[unit] = Scopes(unit, deadline)
        return self._scopes[unit].qualify_name(offset, name)


def _functions(unit: Unit, deadline: Deadline) -> list[Subprogram]:
    """Return the functions of a DWARF unit, from one pass over all entries that skips those that are not needed."""
    info, abbrevs = unit.info, unit.abbrevs
    code_of, end = info.bytes, unit.end
    skip_types = unit.constant(unit.top, LANGUAGE) in C_FAMILY
    found: list[Subprogram] = []
    around: list[tuple[Subprogram | None, int, bool]] = []  # for each open entry: the three variables below
    function: Subprogram | None = None
    inlined = -1
    is_local = False  # inside the entry of a function, also of one without code
    at, count = unit.die, 0
    while at < end:
        count += 1
        if not count & 0xFFF:
            deadline.check()
        offset = at
        code = code_of[at]
        at += 1
        if code >= 0x80:
            code, at = info.uleb(offset)
        if code == 0:
            if not around:
                break
            function, inlined, is_local = around.pop()
            continue
        abbrev = abbrevs[code]
        tag = abbrev.tag
        if skip_types and not is_local and tag in TYPES and abbrev.children and SIBLING in abbrev.attributes:
            attributes, _ = f.read_attributes(info, at, abbrev, unit.shape)
            sibling = unit.offset + attributes[SIBLING][1]
            if attributes[SIBLING][0] in f.REF_UNIT and offset < sibling <= end:
                at = sibling
                continue
        mine, my_index = function, inlined
        if tag == SUBPROGRAM_TAG:
            mine = None
            if RANGES in abbrev.attributes or (LOW_PC in abbrev.attributes and HIGH_PC in abbrev.attributes):
                mine = Subprogram(offset)
                found.append(mine)
            my_index = -1
        elif tag == INLINED and function is not None:
            function.inlined.append((offset, inlined))
            my_index = len(function.inlined) - 1
        at = skip_attributes(unit, at, abbrev)
        if abbrev.children:
            if len(around) > MAX_DEPTH:
                raise FormatError(info.name, offset, "entries nested too deep")
            around.append((function, inlined, is_local))
            function, inlined, is_local = mine, my_index, is_local or tag == SUBPROGRAM_TAG
    return found
