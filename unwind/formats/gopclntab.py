"""Go's function table as an unwind source, and rules for the functions of Go's runtime that switch stacks.

Go's .debug_frame does not describe the places where the runtime switches stacks. `runtime.systemstack` loads sp from a
gobuf, so that the function that it calls runs on the thread's stack and not on the goroutine's. The runtime also aligns
sp for C code and for the vDSO. The table describes neither: the word at the place of its return address is a stale one.
Until sp is restored there is no rule, and the stack is truncated.

Functions that do not return (`runtime.mcall`, `runtime.morestack`) are the root of the stack on which they call, as in
Go's own tracebacks (topofstack in runtime/traceback.go).

Go's function table states sizes of frames, and no function's frame is on two stacks. What leads back depends on the
function (runtime/asm_amd64.s, runtime/sys_linux_amd64.s):

    systemstack        sp is saved in the goroutine's sched; the function returns on the goroutine's stack
    morestack          does not return; the goroutine continues at the saved pc and sp
    asmcgocall         the C frame has the goroutine, and how far sp was below the end of the goroutine's stack
    asmcgocall on g0   the C frame has sp
    nanotime1          r12 has sp while the vDSO runs

A sample has the goroutine as a piece of memory (pyprof.model.sample_batch).

Every Go program has .gopclntab, stripped or not. The table states the size of each function's frame at each pc, without
the return address that a call pushes:

    x86-64    cfa = sp + size + 8; ra = [cfa - 8]
    AArch64   cfa = sp + size; ra = [sp], or lr while the size is 0

The table does not say where the caller's frame pointer is. On x86-64 the prologue shows that. Functions that Go marks
as the first of their stack (`runtime.goexit`, `runtime.mstart`, `runtime.rt0_go`) are outermost. The places where the
runtime switches stacks have separate rules.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.sample_batch import GOROUTINE_WORD
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.gopclntab import NAME, GoFunction, GoTable
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.dwarf_expressions import encode_deref, encode_plus, encode_register_plus
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule

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


def find_switched_code(code: bytes) -> list[tuple[int, int]]:
    """Return the (start, end) offsets of the part of a Go function's code in which sp differs from what .debug_frame
    says.

    If sp is never restored, the part extends to the end of the code.
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


_CONST8U, _MINUS = 0x0E, 0x1C
_SP = 7
"""DWARF number of the register rsp."""

_SCHED = re.compile(rb"[\x48\x49]\x8b[\x58-\x5b\x5d-\x67](.)", re.DOTALL)
"""Pattern of Go code that loads the saved stack pointer (sched.sp) of a struct g into rsp, or first into rbx."""
_KEPT_IN_R12 = b"\x49\x89\xe4"  # mov %rsp,%r12
_KEPT = re.compile(rb"\x48\x89([\xe0-\xe7])")  # mov %rsp,%reg
_STORED_GOROUTINE = re.compile(rb"\x48\x89(?:\x7c\x24(.)|\x3c\x24)", re.DOTALL)  # mov %rdi,n(%rsp); mov %rdi,(%rsp)
_STACK_END = 8
"""Offset in bytes of stack.hi in Go's struct g."""
_PC = 8
"""Distance in bytes of sched.pc from sched.sp in Go's struct g."""

CALLBACKS = ("runtime.cgocallback", "runtime.cgocallback_gofunc")
"""Functions of Go that C calls. They have frames of the same size on the C stack and on the goroutine's stack. As their
return address they push the saved pc of the goroutine (in `runtime.systemstack_switch`), before which there is no call.
"""

_Fix = Callable[[Rule], Rule]
"""Function that changes a rule of Go's function table into the rule of code that runs on another stack."""


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
    """Divide the code of a Go function that runs on another stack into parts, and return how the unwind rule of each
    part differs from that of the function table.

    The table does not know that the code has switched stacks, so its CFA and return address are wrong there.

    Args:
        name: Name of the function.
        code: The function's code.
        begin: Offset at which the code has switched to the other stack.
        end: Offset at which it is back, or that of the code's end.
        arch: The architecture.

    Returns:
        (begin, end, function that makes the right rule from the table's rule) of each part.
    """
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
    """Find the instruction that stores the earlier stack's sp in the frame on the new stack, and return its match or
    None. A register has held that sp since the switch.

    Args:
        before: The code before the switch.
        inside: The code after it.

    Returns:
        The match of the instruction in `inside`, None if there is none.
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
    """Return the offset in Go's struct g from which the last load in the code takes a saved stack pointer, 0 if there
    is no such load.
    """
    loads = list(_SCHED.finditer(code))
    return loads[-1][1][0] if loads else 0


def _lost(rule: Rule) -> Rule:
    return NO_RULE


def _switched(rule: Rule, arch: Arch) -> Rule:
    """Return the function table's unwind rule with changes for code that runs on another stack. The frame pointer
    counts as lost unless the rule says where it is saved.
    """
    named = any(column == arch.fp for column, _ in rule.regs)
    return rule._replace(regs=rule.regs if named else (*rule.regs, (arch.fp, UNDEFINED)), switching=True)


def _by_expression(rule: Rule, sp: bytes, arch: Arch) -> Rule:
    return _switched(rule, arch)._replace(cfa_reg=-1, cfa_off=0, cfa_expr=encode_plus(sp, rule.cfa_off))


def _in_goroutine(rule: Rule, sched: int, returns: bool, arch: Arch) -> Rule:
    """Return the unwind rule for code that has left its goroutine's stack, whose registers are stored in struct g."""
    goroutine = encode_deref(bytes([_CONST8U]) + GOROUTINE_WORD.to_bytes(8, "little"))
    sp = encode_deref(encode_plus(goroutine, sched))
    if returns:
        return _by_expression(rule, sp, arch)
    pc = encode_deref(encode_plus(goroutine, sched + _PC))
    moved = _switched(rule, arch)._replace(cfa_reg=-1, cfa_off=0, cfa_expr=sp)
    return moved._replace(ra=RegRule(RegKind.EXPR, expr=pc))


ARCHES = ("x86_64", "aarch64")

OUTERMOST = ("runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.execute")
"""Names of the functions at which a Go stack begins. Since Go 1.17 the function table marks them, except
`runtime.execute`. That function does not return: the thread continues with a goroutine that did not call it.
"""
SIGNAL_HANDLERS = ("runtime.sigtramp", "runtime.cgoSigtramp")
"""Functions that Go marks as the first of their stack, and whose caller is the kernel's signal trampoline."""

INTERRUPTING = (*CALLBACKS, "runtime.asyncPreempt", "runtime.sigpanic", "runtime.debugCallV2")
"""Functions of Go whose return address does not follow a call instruction: C code enters them, or a signal handler
injects their call.
"""

_RETURN_IN_R12 = b"\x41\x5c\x0f\x05\x41\x54"
"""Code of `syscall.rawVforkSyscall`, whose child shares the stack: pop %r12; syscall; push %r12."""

_PROLOGUE = 128
"""Number of bytes at the start of a Go function that are searched for the instruction that saves the frame pointer."""
_SAVED = re.compile(rb"\x48\x89(?:\x6c\x24.|\xac\x24....)|\x55\x48\x89\xe5", re.DOTALL)
"""Pattern of Go code that saves the frame pointer: mov %rbp,n(%rsp) (before Go 1.21), or push %rbp; mov %rsp,%rbp."""


class GoFrames:
    """An unwind source from Go's function table (.gopclntab). Implements pyprof.unwind.rules.Source."""

    name = "go"
    trust = Trust.GO
    exact = True

    def __init__(self, file: ObjectFile, table: GoTable, arch: Arch, diagnostics: Diagnostics) -> None:
        self._file = file
        self._table = table
        self._arch = arch
        self._diagnostics = diagnostics
        self._is_x86 = arch.name == "x86_64"
        kept = {arch.sp, arch.fp, arch.pc, arch.lr}
        self._lost = tuple((column, UNDEFINED) for column in sorted(arch.callee_saved - kept))
        """Rules of the registers that a caller has lost: Go's compiler preserves only the frame pointer."""

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the unwind rows of the Go function that covers a file address, or None.

        Raises:
            FormatError: The function's record is broken.
        """
        function = self._table.function_at(svma)
        return None if function is None else self._rows(function)

    def extents(self) -> Extents:
        return self._table.extents

    def functions(self) -> Iterator[FunctionRows]:
        """Yield the unwind rows of all Go functions, ascending by start. A broken function record is counted and
        reported as a problem of the file.
        """
        for at in range(self._table.count):
            try:
                rows = self._rows(self._table.function(at))
            except FormatError as error:
                self._diagnostics.count("go_function_broken")
                self._diagnostics.problem(self._file.name, problem_of(error))
                continue
            if rows is not None:
                yield rows

    def _rows(self, function: GoFunction) -> FunctionRows | None:
        start, end = function.start, function.end
        if (function.outermost or function.name in OUTERMOST) and function.name not in SIGNAL_HANDLERS:
            return FunctionRows(start, end, (start,), (Rule(self._arch.sp, 0, UNDEFINED),))
        sizes = self._table.frame_sizes(function)
        if not sizes.ends:
            return None
        saved_from = self._frame_pointer_saved_from(start, end) if self._is_x86 else start
        interrupts = function.name in INTERRUPTING
        starts: list[int] = []
        rules: list[Rule] = []
        at = start
        for until, size in zip(sizes.ends, sizes.values, strict=True):
            cuts = [at, saved_from] if self._is_x86 and at < saved_from < until else [at]
            starts += cuts
            rule = self._vfork_rule(start, end) if size == -8 and self._is_x86 else None
            rules += [(rule or self._rule(size, saved_from <= cut))._replace(signal=interrupts) for cut in cuts]
            at = until
        if at < end:  # the padding after the last instruction
            starts.append(at)
            rules.append(self._rule(0, saved=False))
        rows = FunctionRows(start, end, tuple(starts), tuple(rules))
        if not self._is_x86 or end - start > MAX_CODE:
            return rows
        return add_stack_switches(rows, function.name, self._code(start, end), self._arch)

    def _vfork_rule(self, start: int, end: int) -> Rule | None:
        """Return the unwind rule of a function that keeps its return address in r12 (syscall.rawVforkSyscall), None for
        other functions.
        """
        if _RETURN_IN_R12 not in self._code(start, min(end, start + _PROLOGUE)):
            return None
        r12 = self._arch.registers.index("r12")
        return Rule(self._arch.sp, 0, RegRule(RegKind.REG_PLUS, 0, r12), self._lost)

    def _rule(self, size: int, saved: bool) -> Rule:
        arch = self._arch
        if size < 0:  # the code has left the frame that runtime.asyncPreempt was injected into
            return NO_RULE
        if self._is_x86:
            fp = RegRule(RegKind.AT_CFA, -16) if saved else UNDEFINED
            regs = (*self._lost, (arch.fp, fp)) if size else self._lost
            return Rule(arch.sp, size + 8, RegRule(RegKind.AT_CFA, -8), regs)
        if not size:
            return Rule(arch.sp, 0, RegRule(RegKind.REG_PLUS, 0, arch.lr), self._lost)
        regs = (*self._lost, (arch.fp, RegRule(RegKind.AT_CFA, -size - 8)))
        return Rule(arch.sp, size, RegRule(RegKind.AT_CFA, -size), regs)

    def _frame_pointer_saved_from(self, start: int, end: int) -> int:
        """Return the address in a Go function from which the caller's frame pointer is on the stack; `end` if the
        function never saves it.
        """
        found = _SAVED.search(self._code(start, min(end, start + _PROLOGUE)))
        return end if found is None else start + found.end()

    def _code(self, start: int, end: int) -> bytes:
        return bytes(self._file.at_svma(start, end - start))


def go_source(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> GoFrames | None:
    """Return the Go function table of a file as an unwind source, or None if it has none.

    Raises:
        FormatError: The table is broken, or its form is not known.
    """
    table = file.unwind_table(NAME) if arch.name in ARCHES else None
    return None if table is None else GoFrames(file, GoTable(file, table.svma), arch, diagnostics)
