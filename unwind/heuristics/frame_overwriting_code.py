"""Code that overwrites the saved registers of its frame by those of another frame, so that no rule finds its caller.

GCC compiles __builtin_eh_return for the functions of libgcc that end a step of a C++ exception. Such a function saves
the registers that pass data to a handler, which no other function does. It calls uw_install_context_1, which overwrites
its saved registers and its return address by those of the frame that handles the exception. It calls _Unwind_DebugHook,
moves the stack pointer, and jumps. From the first of the two calls on, its unwind table reads the handler's values as
its own: a walk would find functions that never called each other. The return address is the last word to be
overwritten. As long as it follows a call of the function it is right, and so is the caller's sp.

longjmp(3) and setcontext(3) of the GNU C library load registers from a buffer. Their tables then describe the frame to
which they jump, which is not the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyprof.model.arch import Arch
from pyprof.unwind.return_address_check import CALL_BYTES, SpaceCode
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, Rule

MAX_CODE_BYTES = 16 << 10
"""Maximum number of bytes of a function that are read to find __builtin_eh_return. Functions of libgcc have some
hundreds.
"""

CALLS_BEFORE_JUMP = 2
"""Number of calls before the jump of __builtin_eh_return: uw_install_context_1 and _Unwind_DebugHook."""


class ReplacingSpan(NamedTuple):
    """A part of a function that overwrites its frame. All addresses are those in the process.

    Attributes:
        start: Return address of the call that overwrites the frame.
        jump: First instruction of the jump, where the stack pointer moves.
        end: End of the jump.
    """

    start: int
    jump: int
    end: int


def unprovable_rule(arch: Arch) -> Rule:
    """Return the unwind rule of code whose registers are already those of another frame. It has no provable caller."""
    return Rule(arch.sp, 0, UNDEFINED, replacing=True)


def restores_other_frame(rule: Rule, arch: Arch) -> bool:
    """Return True if an unwind rule describes a frame whose registers are read from a buffer, like that of
    longjmp(3).
    """
    if rule.signal or rule.cfa_reg in (-1, arch.sp, arch.fp):
        return False
    names_sp = any(column == arch.sp for column, _ in rule.regs)
    return names_sp or (rule.ra.kind is RegKind.AT_CFA and rule.ra.n >= 0)


def find_replacing_spans(
    arch: Arch, function: FunctionRows, bias: int, code: SpaceCode, starts_function: Callable[[int], bool]
) -> list[ReplacingSpan]:
    """Return the parts of a function in which __builtin_eh_return overwrites its frame. Most functions have none.

    Args:
        arch: The architecture of the code.
        function: The function, as its unwind table describes it.
        bias: The function's address in the process minus its address in the file.
        code: The code of the process.
        starts_function: Returns True if a function begins at an address in the process.

    Returns:
        The parts. If the two calls are not found, the part begins with the function.
    """
    eh_return = arch.calls.eh_return
    if eh_return is None or not any(eh_return.saved <= _saved_columns(rule) for rule in function.rules):
        return []
    begin = function.start + bias
    text = code.read(begin, min(function.end - function.start, MAX_CODE_BYTES))
    spans = []
    for jump in eh_return.jump.finditer(text):
        at, calls = jump.start(), 0
        while at > 0:
            target = arch.calls.call_target(text[max(0, at - CALL_BYTES) : at], begin + at)
            calls += target is not None and starts_function(target)
            if calls == CALLS_BEFORE_JUMP:
                break
            at -= 1
        spans.append(ReplacingSpan(begin + at, begin + jump.start(), begin + jump.end()))
    return spans


def _saved_columns(rule: Rule) -> frozenset[int]:
    if rule.signal:
        return frozenset()
    return frozenset(column for column, how in rule.regs if how.kind is RegKind.AT_CFA)
