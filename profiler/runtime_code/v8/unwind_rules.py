"""Unwind rules for V8's code on x86-64. V8's functions link frames by rbp. Other rules are needed only for the
instructions that build and remove a frame.

The code before `push %rbp; mov %rsp,%rbp` and after `mov %rbp,%rsp; pop %rbp` has no frame. Code whose begin is not
known has no rules here.

A bytecode handler has no frame: it runs in the frame of the interpreted function, to which rbp points, and the profile
shows both as one frame.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from pyprof.model.arch import Arch
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule

_PROLOGUE = b"\x55\x48\x89\xe5"
"""Machine code that links a frame in V8's code: push %rbp; mov %rsp,%rbp."""
MAX_ENTRY = 96
"""Maximum number of bytes before the prologue of V8's compiled code. They check whether the code is still valid."""
_LEFT = re.compile(rb"(?:\x48\x8b\xe5|\x48\x89\xec)\x5d|\xc9(?=\x59)", re.DOTALL)
"""Pattern of the instructions that remove a frame in V8's code: mov %rbp,%rsp; pop %rbp, or leave before pop %rcx."""
_POPPED = re.compile(rb"(?:(\x59).{3,12}?\x51|(\x41\x5a).{3,12}?\x41\x52)\xc3", re.DOTALL)
"""Pattern of a return in V8's code that removes the arguments: pop %rcx ... push %rcx; ret, or the same with %r10."""
_GONE = re.compile(rb"\xc3|\xc2..|\x41?\xff[\xe0-\xe7]|\xe9.{4}", re.DOTALL)
"""Pattern of a return or a jump in V8's code, which follows the removal of the frame."""
_CALL = 0xE8
_MAX_TAIL = 64
INTERPRETER = "InterpreterEntryTrampoline"
"""Name of the builtin function by which V8 runs interpreted functions."""
CONTINUES = re.compile(r"(?:Baseline|Interpreter).*EnterAt(?:Next)?Bytecode|ContinueTo.*Builtin.*")
"""Pattern of the names of builtin functions by which V8 continues deoptimised code. The deoptimiser builds a frame and
puts the address of such a function on the stack, so a return address may be its first byte.
"""
_BASELINE_PROLOGUE = "BaselineOutOfLinePrologue"
_TAKEN = re.compile(rb"\x41([\x58-\x5f])" + re.escape(_PROLOGUE), re.DOTALL)
"""Pattern of V8 code that takes the return address from the stack and then links a frame: pop of one of %r8 to %r15;
push %rbp; mov %rsp,%rbp.
"""
_POP_OF_R8 = 0x58
_RELOADED = b"\x48\x8b\x6c\x24"
"""Machine code that loads the caller's frame pointer from the stack: mov N(%rsp),%rbp."""
_CALL_SIZE = 5
_BEFORE_RETURN = b"\x38\x1c\x06\x31\x1c"
"""DWARF expression of the address one byte before the return address: lit8, minus, deref, lit1, minus."""

_Part = tuple[int, int, Rule]


class V8FrameRules:
    """A maker of unwind rules for V8's code on x86-64."""

    def __init__(self, arch: Arch) -> None:
        """Create a maker of unwind rules for V8's code on an architecture, which must be x86-64."""
        names, at = arch.registers, RegKind.AT_CFA
        kept = {arch.sp, arch.fp, arch.pc}
        lost = tuple((column, UNDEFINED) for column in sorted(arch.callee_saved - kept))
        fp = (arch.fp, RegRule(at, -16))
        self.entered = Rule(arch.sp, 8, RegRule(at, -8), lost)
        self._pushed = Rule(arch.sp, 16, RegRule(at, -8), (*lost, fp))
        self.linked = Rule(arch.fp, 16, RegRule(at, -8), (*lost, fp))
        self._arch, self._lost = arch, lost
        self._in_rcx, self._in_r10 = self._in_register(names.index("rcx"), 0), self._in_register(names.index("r10"), 0)
        self._not_linked = Rule(arch.sp, 8, RegRule(RegKind.EXPR, 0, -1, _BEFORE_RETURN), lost)
        outer = ((arch.fp, RegRule(at, 0)), (arch.sp, RegRule(RegKind.CFA_PLUS, 16)))
        self._nested = Rule(arch.fp, 0, RegRule(at, 8), (*lost, *outer), cfa_deref=True)

    def _in_register(self, column: int, offset: int) -> Rule:
        """Return the unwind rule of V8 code whose return address is the value of a register plus an offset."""
        return Rule(self._arch.sp, 0, RegRule(RegKind.REG_PLUS, offset, column), self._lost)

    def compiled(self, start: int, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of compiled JavaScript code, or None if its begin is not known."""
        begin = code.find(_PROLOGUE, 0, MAX_ENTRY)
        if begin < 0:  # baseline code calls the function that builds its frame: see _baseline_prologue
            call = code.find(_CALL, 0, MAX_ENTRY)
            return None if call < 0 else self._rows(start, code, [(0, call + _CALL_SIZE - 1, self.entered)])
        return self._rows(start, code, [(0, begin, self.entered), *self._building(begin)])

    def builtin(self, name: str, start: int, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of a function that is built into V8, or None if its code has no known form."""
        if name.endswith("Handler"):
            return FunctionRows(start, start + len(code), (start,), (self.linked,)) if code else None
        if CONTINUES.fullmatch(name):
            return self._continued(start, code)
        if name == _BASELINE_PROLOGUE:
            return self._baseline_prologue(start, code)
        begin = code.find(_PROLOGUE)
        if begin == 0 and not name.startswith(("JSEntry", "JSConstructEntry", "JSRunMicrotasksEntry")):
            return self._rows(start, code, self._building(0))
        if name == INTERPRETER and begin > 0:
            left = _LEFT.search(code, begin)
            end = _GONE.search(code, left.end()) if left is not None else None
            known = code[: end.end()] if end is not None else b""
            parts = [(0, begin, self.entered), *self._building(begin)]
            return self._rows(start, known, parts) if known else None
        return None

    def _continued(self, start: int, code: bytes) -> FunctionRows:
        """Return the unwind rows of a builtin function that continues deoptimised code, to whose frame rbp points.

        The frames that this function builds itself have no return address.
        """
        parts = [(first + len(_PROLOGUE), end, self._nested) for first, end in _frames(code)]
        reloaded = code.find(_RELOADED)
        return _fill(start, len(code) if reloaded < 0 else reloaded, parts, self.linked)

    def _baseline_prologue(self, start: int, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of the builtin function that builds the frame of its caller, which is baseline code.

        The function takes its return address from the stack, builds the frame, and returns. The caller's unwind rows
        assume a frame from the last byte of the call on. Before the frame is built, the rows of this function give an
        address one byte before the return address.
        """
        taken = _TAKEN.search(code)
        if taken is None:
            return None
        number, built = taken[1][0] - _POP_OF_R8, taken.end()
        put = bytes((0x41, 0x50 + number))
        back = code.find(put + b"\x49\x8b", built)  # push of the return address, then mov N(%r13),%rax
        again = code.find(put + _PROLOGUE, built)  # there is no room for the frame: V8 is called
        if not built < back < again:
            return None
        before, linked = (self._in_register(8 + number, -1), self._in_register(8 + number, 0))
        first = taken.start() + len(put)
        parts = [(0, first, self._not_linked), (first, first + 1, before), (first + 1, built, self._pushed)]
        parts += [(built, back + len(put), linked), (again, again + len(put), linked)]
        for at, end in _frames(code, back):
            parts += [(at + 1, at + len(_PROLOGUE), self._pushed), (at + len(_PROLOGUE), end, self.linked)]
        return _fill(start, len(code), parts, self.entered)

    def _building(self, begin: int) -> list[_Part]:
        return [(begin, begin + 1, self.entered), (begin + 1, begin + len(_PROLOGUE), self._pushed)]

    def _rows(self, start: int, code: bytes, parts: list[_Part]) -> FunctionRows:
        """Return the unwind rows of a piece of V8's code, which has a frame except in the given parts and after the
        instructions that remove a frame.
        """
        parts = list(parts)
        done = max((end for _, end, _ in parts), default=0)
        for left in _LEFT.finditer(code, done):
            at = left.end()
            popped = _POPPED.match(code, at)
            if popped is not None:
                rule = self._in_rcx if popped[1] else self._in_r10
                first = popped.end(1) if popped[1] else popped.end(2)
                parts += [(at, first, self.entered), (first, popped.end() - 1, rule)]
                parts.append((popped.end() - 1, popped.end(), self.entered))
            else:
                gone = _GONE.search(code, at, at + _MAX_TAIL)
                parts.append((at, gone.end() if gone is not None else at + 1, self.entered))
        return _fill(start, len(code), parts, self.linked)


def _frames(code: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield for each frame that V8's code builds: (offset of `push %rbp; mov %rsp,%rbp`, offset after the instructions
    that remove the frame).
    """
    begin = code.find(_PROLOGUE, start)
    while begin >= 0:
        left = _LEFT.search(code, begin)
        end = left.end() if left is not None else len(code)
        yield begin, end
        begin = code.find(_PROLOGUE, end)


def _fill(start: int, size: int, parts: list[_Part], base: Rule) -> FunctionRows:
    """Return the unwind rows of a piece of V8 code: the rules of its parts, and the rule `base` between the parts."""
    starts, rules = [0], [base]
    for first, high, rule in sorted(parts, key=lambda part: part[0]):
        low = max(first, starts[-1])
        if low >= min(high, size):
            continue
        if starts[-1] == low:
            rules[-1] = rule
        else:
            starts.append(low)
            rules.append(rule)
        if high < size:
            starts.append(high)
            rules.append(base)
    return FunctionRows(start, start + size, tuple(start + at for at in starts), tuple(rules))


class Builtins:
    """The functions that are built into V8, by address."""

    def __init__(self, functions: list[tuple[int, str]], ranges: tuple[tuple[int, int], ...]) -> None:
        """Index the functions that are built into V8.

        Args:
            functions: Start address and name of each function, ascending.
            ranges: Start and end addresses of each mapping of their code; first of the one in which the start addresses
                lie.
        """
        functions = [(start - 1 if CONTINUES.fullmatch(name) else start, name) for start, name in functions]
        self._functions = functions
        self._starts = [start for start, _ in functions]
        self.ranges = ranges

    def find(self, pc: int) -> tuple[str, int, int] | None:
        """Return (name, start, end) of the built-in function of V8 at an address, or None."""
        for low, high in self.ranges:
            if low <= pc < high:
                first = self.ranges[0][0]
                at = bisect_right(self._starts, pc - low + first) - 1
                if at < 0:
                    return None
                until = self._starts[at + 1] if at + 1 < len(self._starts) else self.ranges[0][1]
                start, name = self._functions[at]
                return name, start - first + low, min(until - first + low, high)
        return None
