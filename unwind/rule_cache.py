"""The interned rules of a recording, and caches of the rows that unwinding has looked up.

A rule has columns if the native walker can execute it. These are the "fast" rules:

    cfa = sp|fp + cfa_off;   sp = cfa + the architecture's sp_off
    ra  = [cfa + ra_off] | lr
    fp  = [cfa + fp_off] | same | unknown
    sp  = [cfa + saved_sp_off], if a rule says so

with the flags signal, outermost and pac. Every other rule has the flag SLOW, and reference_unwinder.py executes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Set

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.arch import Arch
from pyprof.model.unwind_result import Trust
from pyprof.unwind.rules import SAME, RegKind, RegRule, Rule

CFA_FP = 1
RA_LR = 2
FP_SAVED = 4
FP_UNKNOWN = 8
SIGNAL = 16
OUTERMOST = 32
SLOW = 64
UNCOVERED = 128
PAC = 256
SP_SAVED = 512

UNCOVERED_ID = 0
"""Rule id of a pc that no unwind source covers."""

_ROOM = 256

Row = tuple[int, int, int]
"""Unwind row (start, end, rule id): the rule holds from start up to, but not including, end."""

_PLACE_BITS = 13
_MIX = np.uint64(0x9E3779B97F4A7C15)


class MetPcs:
    """A direct-mapped cache that maps an address to a number, such as a pc to the id of its unwind rule.

    A newer address replaces an older one in the same slot.
    """

    def __init__(self) -> None:
        self._pcs = np.zeros(1 << _PLACE_BITS, np.uint64)
        self._pcs[0] = 1  # address 0 has slot 0: without this, an empty cache would seem to hold it
        self._ids = np.zeros(1 << _PLACE_BITS, np.int64)

    def find_ids(
        self, pcs: npt.NDArray[np.uint64], search: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64]:
        """Return the number (such as a rule id) of each address, and compute those that the cache does not hold.

        Args:
            pcs: Addresses, of shape (n,).
            search: Computes the numbers of missing addresses: (k,) uint64 to (k,) int64.
        """
        place = (pcs * _MIX >> np.uint64(64 - _PLACE_BITS)).view(np.int64)
        found = self._ids.take(place)
        known = self._pcs.take(place) == pcs
        if not known.all():
            missed = np.flatnonzero(~known)
            fresh, place = pcs[missed], place[missed]
            found[missed] = ids = search(fresh)
            self._pcs[place], self._ids[place] = fresh, ids
        return found


class RowCache:
    """A sorted set of unwind rows that do not overlap.

    A new row that would overlap another is cut to the one pc that needed it.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rows: list[Row] = []

    def find_row(self, pc: int) -> Row | None:
        """Return the cached unwind row that covers pc, or None."""
        at = bisect_right(self._starts, pc) - 1
        if at < 0:
            return None
        row = self._rows[at]
        return row if pc < row[1] else None

    def add_row(self, row: Row, pc: int) -> Row:
        """Add the unwind row for a pc that find_row() did not find, and return it as it was stored."""
        at = bisect_right(self._starts, pc)
        if (at and self._rows[at - 1][1] > row[0]) or (at < len(self._rows) and self._starts[at] < row[1]):
            row = (pc, pc + 1, row[2])
        at = bisect_right(self._starts, row[0])
        self._starts.insert(at, row[0])
        self._rows.insert(at, row)
        return row

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def drop_rows(self, pcs: Set[int]) -> None:
        """Remove the cached unwind rows that cover any of these pcs."""
        if pcs:
            gone = {row[0] for row in map(self.find_row, pcs) if row is not None}
            kept = [row for row in self._rows if row[0] not in gone]
            self.__init__()  # type: ignore[misc]
            self._rows, self._starts = kept, [row[0] for row in kept]

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True, slots=True)
class KnownRule:
    """An unwind rule together with the source that it comes from, as the unwinder uses it.

    Attributes:
        rule: The rule.
        trust: The source, as the Trust of frames that the rule finds.
        has_expr: The rule contains a DWARF expression.
        columns: Columns of the registers that the rule names.
    """

    rule: Rule
    trust: Trust
    has_expr: bool = field(init=False)
    columns: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        exprs = (self.rule.cfa_expr, self.rule.ra.expr, *(how.expr for _, how in self.rule.regs))
        object.__setattr__(self, "has_expr", any(exprs))
        object.__setattr__(self, "columns", frozenset(column for column, _ in self.rule.regs))


class RuleTable:
    """The interned unwind rules of one architecture. A rule's id is its index in every column.

    Attributes:
        entries: The rules by id; None at UNCOVERED_ID.
        flags: uint16, a combination of flags such as FP_SAVED, SIGNAL and SLOW.
        cfa_off: uint64, two's complement, in bytes; ra_off, fp_off and saved_sp_off likewise.
        trust: uint8 Trust.
    """

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._ids: dict[tuple[Rule, Trust], int] = {}
        self.entries: list[KnownRule | None] = [None]
        self.flags: npt.NDArray[np.uint16] = np.zeros(_ROOM, np.uint16)
        self.cfa_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.ra_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.fp_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.saved_sp_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.trust: npt.NDArray[np.uint8] = np.zeros(_ROOM, np.uint8)
        self.flags[UNCOVERED_ID] = UNCOVERED

    def intern(self, rule: Rule, trust: Trust) -> int:
        """Return the id of an unwind rule, and add the rule if it is new."""
        key = (rule, trust)
        found = self._ids.get(key)
        if found is not None:
            return found
        new = self._ids[key] = len(self.entries)
        self.entries.append(KnownRule(rule, trust))
        if new == len(self.flags):
            for name in ("flags", "cfa_off", "ra_off", "fp_off", "saved_sp_off", "trust"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        flags, cfa_off, ra_off, fp_off, saved_sp_off = encode_fast_rule(rule, self._arch)
        self.flags[new] = flags
        self.cfa_off[new] = cfa_off & 0xFFFFFFFFFFFFFFFF
        self.ra_off[new] = ra_off & 0xFFFFFFFFFFFFFFFF
        self.fp_off[new] = fp_off & 0xFFFFFFFFFFFFFFFF
        self.saved_sp_off[new] = saved_sp_off & 0xFFFFFFFFFFFFFFFF
        self.trust[new] = trust
        return new

    def __len__(self) -> int:
        return len(self.entries)


def encode_fast_rule(rule: Rule, arch: Arch) -> tuple[int, int, int, int, int]:
    """Return (flags, cfa_off, ra_off, fp_off, saved_sp_off) of an unwind rule.

    The flags are SLOW alone if the rule is not a fast one.
    """
    flags = 0
    ra_off = fp_off = saved_sp_off = 0
    if rule.replacing or rule.switching:
        return SLOW, 0, 0, 0, 0
    if rule.ra.kind is RegKind.UNDEFINED:
        return OUTERMOST, 0, 0, 0, 0
    if rule.cfa_deref or rule.cfa_reg not in (arch.sp, arch.fp):
        return SLOW, 0, 0, 0, 0
    if rule.cfa_reg == arch.fp:
        flags |= CFA_FP
    if rule.ra.kind is RegKind.AT_CFA:
        ra_off = rule.ra.n
    elif arch.lr >= 0 and rule.ra in (SAME, RegRule(RegKind.REG_PLUS, 0, arch.lr)):
        flags |= RA_LR
    else:
        return SLOW, 0, 0, 0, 0
    for column, how in rule.regs:
        if column == arch.sp and how.kind is RegKind.AT_CFA and not rule.signal:
            flags |= SP_SAVED
            saved_sp_off = how.n
        elif column == arch.sp or (column == arch.lr and rule.signal):
            return SLOW, 0, 0, 0, 0
    how = next((how for column, how in rule.regs if column == arch.fp), SAME)
    if how.kind is RegKind.AT_CFA:
        flags |= FP_SAVED
        fp_off = how.n
    elif how.kind is RegKind.UNDEFINED:
        flags |= FP_UNKNOWN
    elif how.kind is not RegKind.SAME:
        return SLOW, 0, 0, 0, 0
    if rule.signal:
        flags |= SIGNAL
    if rule.pac:
        flags |= PAC
    return flags, rule.cfa_off, ra_off, fp_off, saved_sp_off
