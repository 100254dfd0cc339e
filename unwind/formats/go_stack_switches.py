"""Unwind rules for the functions of Go's runtime that switch stacks, from their code on x86-64.

Go's function table states sizes of frames, and no function's frame is on two stacks. What leads back depends on the
function (runtime/asm_amd64.s, runtime/sys_linux_amd64.s):

    systemstack        sp is saved in the goroutine's sched; the function returns on the goroutine's stack
    morestack          does not return; the goroutine continues at the saved pc and sp
    asmcgocall         the C frame has the goroutine, and how far sp was below the end of the goroutine's stack
    asmcgocall on g0   the C frame has sp
    nanotime1          r12 has sp while the vDSO runs

A sample has the goroutine as a piece of memory (pyprof.model.goroutine_pieces).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from functools import partial

from pyprof.model.arch import Arch
from pyprof.model.goroutine_pieces import GOROUTINE_WORD
from pyprof.unwind.dwarf_expressions import encode_deref, encode_plus, encode_register_plus
from pyprof.unwind.formats.cfi.go_stacks import NO_RULE, find_switched_code
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule

_CONST8U, _MINUS = 0x0E, 0x1C
_SP = 7
"""DWARF number of rsp."""

_SCHED = re.compile(rb"[\x48\x49]\x8b[\x58-\x5b\x5d-\x67](.)", re.DOTALL)
"""Pattern of code that loads the stack pointer of a struct g: mov sched(%reg),%rsp or, before that moves on, %rbx."""
_KEPT_IN_R12 = b"\x49\x89\xe4"  # mov %rsp,%r12
_KEPT = re.compile(rb"\x48\x89([\xe0-\xe7])")  # mov %rsp,%reg
_STORED_GOROUTINE = re.compile(rb"\x48\x89(?:\x7c\x24(.)|\x3c\x24)", re.DOTALL)  # mov %rdi,n(%rsp); mov %rdi,(%rsp)
_STACK_END = 8
"""Offset of stack.hi in struct g."""
_PC = 8
"""Distance of sched.pc from sched.sp."""

CALLBACKS = ("runtime.cgocallback", "runtime.cgocallback_gofunc")
"""Functions of Go that C calls. They have frames of the same size on the C stack and on the goroutine's stack, and push
the saved pc of the goroutine (`runtime.systemstack_switch`), at which no call returns.
"""

_Fix = Callable[[Rule], Rule]
"""Function that changes the rule of the table into that of code on another stack."""


def add_stack_switches(rows: FunctionRows, name: str, code: bytes, arch: Arch) -> FunctionRows:
    """Return the unwind rows of a Go function with rules for the code that runs on another stack.

    Args:
        rows: The rows of Go's function table.
        name: Name of the function.
        code: The function's code, b"" if it is not available.
        arch: The architecture, x86-64.
    """
    found = find_switched_code(code) if len(code) == rows.end - rows.start else []
    if not found or name in CALLBACKS:
        return rows
    spans = [part for begin, end in found for part in _parts(name, code, begin, end, arch)]
    edges = {rows.start + at for begin, end, _ in spans for at in (begin, end)} - {rows.end}
    starts = sorted({*rows.starts, *edges})
    rules = []
    for start in starts:
        rule = rows.rules[max(bisect_right(rows.starts, start) - 1, 0)]
        at = start - rows.start
        fix = next((fix for begin, end, fix in spans if begin <= at < end), None)
        rules.append(rule if fix is None else fix(rule))
    return rows._replace(starts=tuple(starts), rules=tuple(rules))


def _parts(name: str, code: bytes, begin: int, end: int, arch: Arch) -> list[tuple[int, int, _Fix]]:
    """Return (begin, end, change of the table's rule) for the parts of one span of code that runs on another stack."""
    inside = code[begin:end]
    if end == len(code) and name != "runtime.morestack":
        return [(begin, end, lambda rule: rule._replace(ra=UNDEFINED))]
    if end == len(code) or name == "runtime.systemstack":
        sched = _saved_sp(code[:begin])
        returns = end < len(code)
        return [(begin, end, partial(_in_goroutine, sched=sched, returns=returns, arch=arch) if sched else _lost)]
    if _KEPT_IN_R12 in code[:begin]:
        r12 = arch.registers.index("r12")
        return [(begin, end, lambda rule: _switched(rule, arch)._replace(cfa_reg=r12))]
    goroutine = _STORED_GOROUTINE.search(inside)
    depth = _STORED_GOROUTINE.search(inside, goroutine.end()) if goroutine else None
    kept = _kept_sp(code[:begin], inside)
    if goroutine and depth:
        high = encode_deref(encode_plus(encode_deref(_slot(goroutine)), _STACK_END))
        sp, known = high + encode_deref(_slot(depth)) + bytes([_MINUS]), begin + depth.end()
    elif kept:
        sp, known = encode_deref(_slot(kept)), begin + kept.end()
    else:
        return [(begin, end, _lost)]
    return [(begin, known, _lost), (known, end, partial(_by_expression, sp=sp, arch=arch))]


def _kept_sp(before: bytes, inside: bytes) -> re.Match[bytes] | None:
    """Return the store of the sp that a register keeps since before code went to another stack, None if there is
    none.
    """
    for kept in _KEPT.finditer(before):
        register = (kept[1][0] & 7) << 3
        near, at_sp = re.escape(bytes([0x44 | register])), re.escape(bytes([0x04 | register]))
        store = re.search(rb"\x48\x89(?:" + near + rb"\x24(.)|" + at_sp + rb"\x24())", inside, re.DOTALL)
        if store is not None:
            return store
    return None


def _slot(store: re.Match[bytes]) -> bytes:
    return encode_register_plus(_SP, int.from_bytes(store[1] or b"", "little", signed=True))


def _saved_sp(code: bytes) -> int:
    """Return the offset of the saved stack pointer in struct g, of which code has just loaded one; 0 if unknown."""
    loads = list(_SCHED.finditer(code))
    return loads[-1][1][0] if loads else 0


def _lost(rule: Rule) -> Rule:
    return NO_RULE


def _switched(rule: Rule, arch: Arch) -> Rule:
    """Return a rule of the table for code on another stack. Only the rows of a frame say where its fp is."""
    named = any(column == arch.fp for column, _ in rule.regs)
    return rule._replace(regs=rule.regs if named else (*rule.regs, (arch.fp, UNDEFINED)), switching=True)


def _by_expression(rule: Rule, sp: bytes, arch: Arch) -> Rule:
    return _switched(rule, arch)._replace(cfa_reg=-1, cfa_off=0, cfa_expr=encode_plus(sp, rule.cfa_off))


def _in_goroutine(rule: Rule, sched: int, returns: bool, arch: Arch) -> Rule:
    """Return the rule of code that left its goroutine's stack with registers that are in struct g."""
    goroutine = encode_deref(bytes([_CONST8U]) + GOROUTINE_WORD.to_bytes(8, "little"))
    sp = encode_deref(encode_plus(goroutine, sched))
    if returns:
        return _by_expression(rule, sp, arch)
    pc = encode_deref(encode_plus(goroutine, sched + _PC))
    moved = _switched(rule, arch)._replace(cfa_reg=-1, cfa_off=0, cfa_expr=sp)
    return moved._replace(ra=RegRule(RegKind.EXPR, expr=pc))
