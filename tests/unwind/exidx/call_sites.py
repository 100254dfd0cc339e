"""A comparison of EXIDX and .debug_frame at every call of a file, where both must give the same frame."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pyprof.model.arch import ARM
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import open_debug_frame
from pyprof.unwind.formats.exidx_section import open_exidx
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows, RegKind, Rule
from tests.support import need

SHAPES = Path(__file__).parent / "programs" / "shapes.cpp"
CALLS = {"bl", "blx"}


@dataclass
class Compared:
    """The result of the comparison.

    Attributes:
        counts: Number of calls by outcome.
        unlike: (svma, frame of EXIDX, frame of .debug_frame) of each difference.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unlike: list[tuple[int, str, str]] = field(default_factory=list)


def call_sites(path: Path) -> list[int]:
    """Return the address of each call instruction according to objdump.

    Mapping symbols mark code, data, A32 and T32.
    """
    text = subprocess.run(
        [need("arm-linux-gnueabihf-objdump"), "-d", str(path)], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    return [
        int(at, 16)
        for at, name in re.findall(r"^ *([0-9a-f]+):\t[0-9a-f ]+\t(\w+)", text, re.M)
        if name in CALLS or (name.startswith("bl") and name[2:] in ("eq", "ne", "cs", "cc", "hi", "ls", "gt", "le"))
    ]


def compare(path: Path) -> Compared:
    elf = ElfFile.open(str(path))
    diagnostics = Diagnostics()
    exidx, frames = open_exidx(elf, ARM, diagnostics), open_debug_frame(elf, ARM, diagnostics)
    assert exidx is not None
    assert frames is not None
    done = Compared()
    for pc in call_sites(path):
        ours, theirs = rule_at(exidx.function_at(pc), pc), rule_at(frames.function_at(pc), pc)
        if ours is None or theirs is None:
            done.counts["neither" if ours is theirs else "exidx only" if theirs is None else "debug_frame only"] += 1
        elif frame(ours) == frame(theirs):
            done.counts["same"] += 1
        else:
            done.counts["unlike"] += 1
            done.unlike.append((pc, describe_rule(ours, ARM), describe_rule(theirs, ARM)))
    return done


def rule_at(rows: FunctionRows | None, pc: int) -> Rule | None:
    if rows is None:
        return None
    return [rule for start, rule in zip(rows.starts, rows.rules, strict=True) if start <= pc][-1]


def frame(rule: Rule) -> tuple[object, ...]:
    """Return the part of a rule that both tables can express: CFA, return address and callee-saved registers."""
    saved = {column: how for column, how in rule.regs if column in ARM.callee_saved and how.kind is not RegKind.SAME}
    return rule.cfa_reg, rule.cfa_off, rule.cfa_deref, rule.ra, tuple(sorted(saved.items(), key=lambda item: item[0]))
