"""Where Go's runtime leaves the stack that its .debug_frame describes.

`runtime.systemstack` loads sp from a gobuf, so that the function that it calls runs on the stack of the thread, not on
the goroutine's. The runtime also aligns sp for C code and for the vDSO. The table says nothing of either: the word at
its place for the return address is left over from others. Until sp is back there is no rule, and the stack is cut.

Functions that do not come back (`runtime.mcall`, `runtime.morestack`) begin the stack on which they call, as in Go's
own tracebacks (topofstack in runtime/traceback.go).
"""

from __future__ import annotations

import re
from bisect import bisect_right

from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule

MOST_CODE = 1024
"""Bytes of the longest function that is looked at: these are short, and written by hand."""

_LOAD = rb"[\x48\x49]\x8b[\x60-\x63\x65-\x67]\x38"  # mov 0x38(%reg),%rsp: g.sched.sp
_BY_RBX = rb"\x48\x8b[\x58-\x5b\x5d-\x5f]\x38\x48\x89\xdc"  # mov 0x38(%reg),%rbx; mov %rbx,%rsp
_ALIGN = rb"\x48\x83\xe4\xf0"  # and $-16,%rsp
_BACK = rb"[\x48\x4c]\x89[\xc4\xcc\xd4\xdc\xe4\xec\xf4\xfc]|\x48\x8b\x64\x24"  # mov %reg,%rsp; mov n(%rsp),%rsp
_AWAY = re.compile(b"|".join((_LOAD, _BY_RBX, _ALIGN)), re.DOTALL)
_HOME = re.compile(_LOAD + b"|" + _BACK, re.DOTALL)

_NO_RULE = Rule(-1, 0, RegRule(RegKind.AT_CFA, -8), cfa_expr=b"\x06")
"""DW_OP_deref of an empty stack: it has no value, so that the walk ends without a rule."""


def is_go(file: ObjectFile, arch: Arch) -> bool:
    """Was a file linked by Go, for an architecture whose code is known here?"""
    return arch.name == "x86_64" and ".gopclntab" in file.sections


def away(code: bytes) -> list[tuple[int, int]]:
    """From where to where (offsets) sp is not what the table says; to the end where it does not come back."""
    found: list[tuple[int, int]] = []
    at = 0
    while (left := _AWAY.search(code, at)) is not None:
        back = _HOME.search(code, left.end())
        at = back.end() if back else len(code)
        found.append((left.end(), at))
    return found


def with_stacks(rows: FunctionRows, code: bytes) -> FunctionRows:
    """The rows of a function of a Go program, as its code says. code: of the function, b"" where it is not here."""
    found = away(code) if len(code) == rows.end - rows.start and not rows.repeat else []
    if not found:
        return rows
    moved = [(rows.start + begin, rows.start + end) for begin, end in found]
    ends = {at for pair in moved for at in pair if at < rows.end}
    starts = sorted({*rows.starts, *ends})
    rules = []
    for start in starts:
        rule = rows.rules[max(bisect_right(rows.starts, start) - 1, 0)]
        span = next((pair for pair in moved if pair[0] <= start < pair[1]), None)
        if span is not None:
            rule = rule._replace(ra=UNDEFINED) if span[1] == rows.end else _NO_RULE
        rules.append(rule)
    return rows._replace(starts=tuple(starts), rules=tuple(rules))
