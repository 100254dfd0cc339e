"""Unwind rules as named text fields: for `pyprof inspect --json`, and to compare two sources."""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.records import dataclass
from pyprof.unwind.interned_rules import SLOW, encode_fast_rule
from pyprof.unwind.rule_text import describe_rule, register_name
from pyprof.unwind.rules import SAME, RegKind, RegRule, Rule


@dataclass(frozen=True, slots=True)
class RuleWords:
    """An unwind rule as named text fields.

    Attributes:
        cfa: "sp+16", "[fp-8]", "r10" or "expr".
        ra: "[cfa-8]", "lr", "reg 33" (a DWARF register number), "undefined" or "expr".
        fp: As ra, and "same".
        signal: The frame is a signal trampoline.
        outermost: The frame has no caller.
        slow: Only the reference unwinder can execute the rule, not the batch walker.
        text: The whole rule.
    """

    cfa: str
    ra: str
    fp: str
    signal: bool
    outermost: bool
    slow: bool
    text: str

    @property
    def comparable(self) -> bool:
        """True if equal unwind rules have equal text. Different expressions can compute the same value."""
        return "expr" not in (self.cfa, self.ra, self.fp)

    @property
    def meaning(self) -> tuple[str, str, str, bool]:
        """A key that is equal for two unwind rules that find the same caller. All outermost rules have one key."""
        return ("", "undefined", "", False) if self.outermost else (self.cfa, self.ra, self.fp, self.signal)


def format_rule_fields(rule: Rule, arch: Arch) -> RuleWords:
    regs = dict(rule.regs)
    if rule.cfa_reg < 0:
        cfa = "expr"
    else:
        cfa = _sum(register_name(arch, rule.cfa_reg), rule.cfa_off)
        cfa = f"[{cfa}]" if rule.cfa_deref else cfa
    outermost = rule.ra.kind is RegKind.UNDEFINED
    return RuleWords(
        cfa=cfa,
        ra=_words(rule.ra, arch, same="lr" if arch.lr >= 0 else "same"),
        fp=_words(regs.get(arch.fp, SAME), arch, same="same"),
        signal=rule.signal,
        outermost=outermost,
        slow=encode_fast_rule(rule, arch)[0] == SLOW,
        text=describe_rule(_said(rule, arch), arch),
    )


def _said(rule: Rule, arch: Arch) -> Rule:
    """Return an unwind rule without the registers that are lost, except fp.

    A format that describes only a few registers says in each row that all others are lost.
    """
    said = tuple((c, how) for c, how in rule.regs if c == arch.fp or how.kind is not RegKind.UNDEFINED)
    return rule._replace(regs=said)


def _words(rule: RegRule, arch: Arch, same: str) -> str:
    match rule.kind:
        case RegKind.SAME:
            return same
        case RegKind.UNDEFINED:
            return "undefined"
        case RegKind.AT_CFA:
            return f"[{_sum('cfa', rule.n)}]"
        case RegKind.CFA_PLUS:
            return _sum("cfa", rule.n)
        case RegKind.REG_PLUS:
            if rule.reg == arch.lr and not rule.n:
                return "lr"
            return _sum(f"reg {_dwarf_number(rule.reg, arch)}", rule.n)
        case RegKind.AT_REG:
            return f"[{_sum(register_name(arch, rule.reg), rule.n)}]"
        case _:
            return "expr"


def _sum(base: str, n: int) -> str:
    return f"{base}{n:+d}" if n else base


def _dwarf_number(column: int, arch: Arch) -> int:
    return next((number for number, known in arch.dwarf.items() if known == column), column)
