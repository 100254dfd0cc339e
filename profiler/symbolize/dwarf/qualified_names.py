"""Namespaces, classes and functions around functions without a linkage name.

GCC emits no linkage name for functions that other files cannot call: static functions, lambdas, members of local
classes.
"""

from __future__ import annotations

from pyprof.symbolize.dwarf.cursor import Deadline
from pyprof.symbolize.dwarf.units import Unit, skip_attributes

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
