"""The places where Go's runtime switches stacks, which its .debug_frame does not describe.

`runtime.systemstack` loads sp from a gobuf, so that the function that it calls runs on the thread's stack and not on
the goroutine's. The runtime also aligns sp for C code and for the vDSO. The table describes neither: the word at the
place of its return address is a stale one. Until sp is restored there is no rule, and the stack is truncated.

Functions that do not return (`runtime.mcall`, `runtime.morestack`) are the root of the stack on which they call, as in
Go's own tracebacks (topofstack in runtime/traceback.go).
"""

from __future__ import annotations

import re
from bisect import bisect_right

from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule

MAX_CODE = 1024
"""Maximum size in bytes of a Go function that is examined for stack switches. The functions in question are short
assembly.
"""

_LOAD = rb"[\x48\x49]\x8b[\x60-\x63\x65-\x67]\x38"  # mov 0x38(%reg),%rsp: g.sched.sp
_BY_RBX = rb"\x48\x8b[\x58-\x5b\x5d-\x5f]\x38\x48\x89\xdc"  # mov 0x38(%reg),%rbx; mov %rbx,%rsp
_ALIGN = rb"\x48\x83\xe4\xf0"  # and $-16,%rsp
_BACK = (
    rb"[\x48\x4c]\x89[\xc4\xcc\xd4\xdc\xe4\xec\xf4\xfc]|\x48\x8b(?:\x64|\x24)\x24"  # mov %reg,%rsp; mov n(%rsp),%rsp
)
_AWAY = re.compile(b"|".join((_LOAD, _BY_RBX, _ALIGN)), re.DOTALL)
_HOME = re.compile(_LOAD + b"|" + _BACK, re.DOTALL)

NO_RULE = Rule(-1, 0, RegRule(RegKind.AT_CFA, -8), cfa_expr=b"\x06")
"""An unwind rule that always fails, so that the walk ends: DW_OP_deref on an empty stack has no value."""


def is_go(file: ObjectFile, arch: Arch) -> bool:
    """Return True if Go's linker wrote the file, for an architecture whose code this module knows."""
    return arch.name == "x86_64" and ".gopclntab" in file.sections


def find_switched_code(code: bytes) -> list[tuple[int, int]]:
    """Return the (start, end) offsets of a Go function's code in which sp is not what .debug_frame says.

    The end is that of the code if sp is not restored.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while (left := _AWAY.search(code, at)) is not None:
        back = _HOME.search(code, left.end())
        at = back.end() if back else len(code)
        found.append((left.end(), at))
    return found


def correct_rows(rows: FunctionRows, code: bytes) -> FunctionRows:
    """Return the unwind rows of a Go function, corrected where its code switches stacks.

    Args:
        rows: The rows of the table.
        code: The function's code, b"" if it is not available.
    """
    found = find_switched_code(code) if len(code) == rows.end - rows.start and not rows.repeat else []
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
            rule = rule._replace(ra=UNDEFINED) if span[1] == rows.end else NO_RULE
        rules.append(rule)
    return rows._replace(starts=tuple(starts), rules=tuple(rules))
