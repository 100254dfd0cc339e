"""Go's own function table, .gopclntab, as an unwind source. Every Go program has it, stripped or not.

The table states the size of each function's frame at each pc, without the return address that a call pushes:

    x86-64    cfa = sp + size + 8; ra = [cfa - 8]
    AArch64   cfa = sp + size; ra = [sp], or lr while the size is 0

It does not say where the caller's frame pointer is. On x86-64 the prologue tells that. Functions that Go marks as the
first of their stack (`runtime.goexit`, `runtime.mstart`, `runtime.rt0_go`) are outermost. The places where the runtime
switches stacks have the rules of go_stack_switches.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.reasons import problem_of
from pyprof.model.walk import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.gopclntab import NAME, GoFunction, GoTable
from pyprof.unwind.formats.cfi.go_stacks import MAX_CODE, NO_RULE
from pyprof.unwind.formats.go_stack_switches import CALLBACKS, add_stack_switches
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule

ARCHES = ("x86_64", "aarch64")

OUTERMOST = ("runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.execute")
"""Names of the first functions of a Go stack. Records mark them since Go 1.17, but for `runtime.execute`: it does not
return, and the thread has a new goroutine by then, which did not call it.
"""
SIGNAL_HANDLERS = ("runtime.sigtramp", "runtime.cgoSigtramp")
"""Functions that Go marks as the first of their stack, and whose caller is the kernel's signal trampoline."""

INTERRUPTING = (*CALLBACKS, "runtime.asyncPreempt", "runtime.sigpanic", "runtime.debugCallV2")
"""Functions of Go at whose return address no call returns: C calls them, or a signal handler has injected the call."""

_RETURN_IN_R12 = b"\x41\x5c\x0f\x05\x41\x54"
"""Code of `syscall.rawVforkSyscall`, whose child shares the stack: pop %r12; syscall; push %r12."""

_PROLOGUE = 128
"""Number of bytes from a Go function's start in which its code saves the frame pointer."""
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
        """Go's compiler preserves no register but the frame pointer."""

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
        """Yield the unwind rows of all Go functions, ascending by start. A broken one is counted and reported as a
        problem of the file.
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
        """Return the rule of code that has popped its return address into r12, None for other functions."""
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
        """Return the address in a Go function from which the caller's frame pointer is on the stack; `end` if it never
        is.
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
