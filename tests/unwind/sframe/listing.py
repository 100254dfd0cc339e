"""A parser of objdump --sframe, as a second opinion on a section.

A row is (pc, cfa, fp, ra) in objdump's notation. Its three ways of writing "at the default place" (u, U, f) become "u".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyprof.model.arch import Arch
from pyprof.unwind.formats.sframe_source import SFrame
from pyprof.unwind.rules import RegKind, RegRule, Rule

OUTERMOST = "RA undefined"
FUNCTION = re.compile(
    r"func idx \[\d+\]: pc = (0x[0-9a-f]+), size = (\d+) bytes(?:, attr = \"(\w+)\")?(, pauth = B key)?"
)
Row = tuple[int, str, str, str]


@dataclass(frozen=True, order=True)
class Listed:
    start: int
    size: int
    attributes: str
    key_b: bool
    masked: bool
    rows: tuple[Row, ...]


def read_listing(text: str) -> list[Listed]:
    """Return the functions of a listing in order of (start, size)."""
    listed = []
    for part in re.split(r"(?=func idx \[)", text)[1:]:
        head, columns, *lines = part.strip().splitlines()
        found = FUNCTION.match(head)
        assert found, head
        rows = tuple(_row(line) for line in lines if line.strip())
        start, size, attributes, key = found.groups()
        listed.append(
            Listed(
                int(start, 16), int(size), attributes or "", bool(key), columns.strip().startswith("STARTPC[m]"), rows
            )
        )
    return sorted(listed)


def _row(line: str) -> Row:
    pc, *words = line.split()
    if " ".join(words) == OUTERMOST:
        return int(pc, 16), OUTERMOST, "", ""
    cfa, fp, ra = words
    return int(pc, 16), cfa, fp.lower().replace("f", "u") if fp in "uUf" else fp, re.sub("^[uUf]", "u", ra)


def as_listed(source: SFrame, i: int, arch: Arch) -> Listed:
    """Return function i of a source in the notation of a listing."""
    entry, rows = source.entry(i), source.function(i)
    base = entry.start if entry.repeat else 0
    words = () if rows is None else tuple(zip(rows.starts, rows.rules, strict=True))
    return Listed(
        entry.start,
        entry.size,
        "S" * entry.signal + "F" * entry.flex,
        entry.pauth_key == "b",
        bool(entry.repeat),
        tuple((at - base, *_words(rule, arch)) for at, rule in words),
    )


def _words(rule: Rule, arch: Arch) -> tuple[str, str, str]:
    if rule.ra.kind == RegKind.UNDEFINED:
        return OUTERMOST, "", ""
    cfa = f"{_register(rule.cfa_reg, arch)}{rule.cfa_off:+d}"
    if rule.cfa_deref:
        cfa = f"({cfa})"
    fp = _recovered(dict(rule.regs).get(arch.fp), arch)
    default = RegRule(RegKind.AT_CFA, -8) if arch.lr < 0 else RegRule(RegKind.REG_PLUS, 0, arch.lr)
    ra = "u" if rule.ra == default else _recovered(rule.ra, arch)
    return cfa, fp, ra + "[s]" * rule.pac


def _recovered(rule: RegRule | None, arch: Arch) -> str:
    if rule is None:
        return "u"
    if rule.kind == RegKind.AT_CFA:
        return f"c{rule.n:+d}"
    text = f"{_register(rule.reg, arch)}{rule.n:+d}"
    return f"({text})" if rule.kind == RegKind.AT_REG else text


def _register(column: int, arch: Arch) -> str:
    if column in (arch.sp, arch.fp):
        return "sp" if column == arch.sp else "fp"
    return f"r{next(number for number, found in arch.dwarf.items() if found == column)}"
