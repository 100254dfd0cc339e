"""All rules of a recording, each once, with columns for those that the batch walker can execute.

The fast vocabulary:

    cfa = sp|fp + cfa_off;   sp = cfa + the architecture's sp_off
    ra  = [cfa + ra_off] | lr
    fp  = [cfa + fp_off] | same | unknown

with the flags signal, outermost and pac. Every other rule has the flag SLOW: scalar.py executes it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.walk import Trust
from pyprof.records import dataclass, field
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

UNCOVERED_ID = 0
"""Rule id of a pc that no source covers."""

_ROOM = 256


@dataclass(frozen=True, slots=True)
class KnownRule:
    """A rule and which source it comes from. columns: the registers that it names."""

    rule: Rule
    trust: Trust
    has_expr: bool = field(init=False)
    columns: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        exprs = (self.rule.cfa_expr, self.rule.ra.expr, *(how.expr for _, how in self.rule.regs))
        object.__setattr__(self, "has_expr", any(exprs))
        object.__setattr__(self, "columns", frozenset(column for column, _ in self.rule.regs))


class RuleTable:
    """Interned rules of one architecture. entries[id]: the rule, None for UNCOVERED_ID.

    flags: uint16, the constants above. cfa_off, ra_off, fp_off: uint64, two's complement. trust: uint8 Trust.
    """

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._ids: dict[tuple[Rule, Trust], int] = {}
        self.entries: list[KnownRule | None] = [None]
        self.flags: npt.NDArray[np.uint16] = np.zeros(_ROOM, np.uint16)
        self.cfa_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.ra_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.fp_off: npt.NDArray[np.uint64] = np.zeros(_ROOM, np.uint64)
        self.trust: npt.NDArray[np.uint8] = np.zeros(_ROOM, np.uint8)
        self.flags[UNCOVERED_ID] = UNCOVERED

    def intern(self, rule: Rule, trust: Trust) -> int:
        """The id of a rule."""
        key = (rule, trust)
        found = self._ids.get(key)
        if found is not None:
            return found
        new = self._ids[key] = len(self.entries)
        self.entries.append(KnownRule(rule, trust))
        if new == len(self.flags):
            for name in ("flags", "cfa_off", "ra_off", "fp_off", "trust"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        flags, cfa_off, ra_off, fp_off = fast_form(rule, self._arch)
        self.flags[new] = flags
        self.cfa_off[new] = cfa_off & 0xFFFFFFFFFFFFFFFF
        self.ra_off[new] = ra_off & 0xFFFFFFFFFFFFFFFF
        self.fp_off[new] = fp_off & 0xFFFFFFFFFFFFFFFF
        self.trust[new] = trust
        return new

    def __len__(self) -> int:
        return len(self.entries)


def fast_form(rule: Rule, arch: Arch) -> tuple[int, int, int, int]:
    """(flags, cfa_off, ra_off, fp_off) of a rule; flags is SLOW alone if it is not of the fast vocabulary."""
    flags = 0
    ra_off = fp_off = 0
    if rule.ra.kind is RegKind.UNDEFINED:
        return OUTERMOST, 0, 0, 0
    if rule.cfa_deref or rule.cfa_reg not in (arch.sp, arch.fp):
        return SLOW, 0, 0, 0
    if rule.cfa_reg == arch.fp:
        flags |= CFA_FP
    if rule.ra.kind is RegKind.AT_CFA:
        ra_off = rule.ra.n
    elif arch.lr >= 0 and rule.ra in (SAME, RegRule(RegKind.REG_PLUS, 0, arch.lr)):
        flags |= RA_LR
    else:
        return SLOW, 0, 0, 0
    if any(column == arch.sp or (column == arch.lr and rule.signal) for column, _ in rule.regs):
        return SLOW, 0, 0, 0
    how = next((how for column, how in rule.regs if column == arch.fp), SAME)
    if how.kind is RegKind.AT_CFA:
        flags |= FP_SAVED
        fp_off = how.n
    elif how.kind is RegKind.UNDEFINED:
        flags |= FP_UNKNOWN
    elif how.kind is not RegKind.SAME:
        return SLOW, 0, 0, 0
    if rule.signal:
        flags |= SIGNAL
    if rule.pac:
        flags |= PAC
    return flags, rule.cfa_off, ra_off, fp_off
