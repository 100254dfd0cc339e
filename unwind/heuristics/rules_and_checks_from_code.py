"""Checks of machine code near a pc: return addresses, epilogues, code that overwrites saved registers.

Code is read from the module's file, and from the target's memory only if there is no file. Results are cached per
address space, also for generated code: code that is rewritten keeps its address and its purpose.

Epilogues and other code without tables get rules from the instructions between the pc and the return. Each of them must
move sp, pop a register, or be a call that returns. Then these instructions say exactly where the caller's registers
are. Otherwise there is no rule. This finds the callers of generated trampolines and of epilogues. CPython's perf
trampolines (`sub $8,%rsp; call *%rcx; add $8,%rsp; ret`) have neither a table nor a frame record.

The kernel's signal frame is found by its layout if no table covers the trampoline that returns from a handler.

Some code overwrites the saved registers of its frame by those of another frame, so that no rule finds its caller. GCC
compiles __builtin_eh_return for the functions of libgcc that end a step of a C++ exception. Such a function saves the
registers that pass data to a handler, which no other function does. It calls uw_install_context_1, which overwrites its
saved registers and its return address by those of the frame that handles the exception. It calls _Unwind_DebugHook,
moves the stack pointer, and jumps. From the first of the two calls on, its unwind table reads the handler's values as
its own: a walk would find functions that never called each other. The return address is the last word to be
overwritten. As long as the return address follows a call of the function, it is right, and so is the caller's sp.

longjmp(3) and setcontext(3) of the GNU C library load registers from a buffer. Their tables then describe the frame to
which they jump, which is not the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch, SigFrame
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule

CALL_BYTES = 8
"""Size in bytes of the longest call instruction that is recognized."""

LOWEST_CODE = 1 << 16
"""Lowest address at which the kernel maps anything (vm.mmap_min_addr)."""

_ROOM = 1 << 16


class Verdict(IntEnum):
    NO = 0
    UNKNOWN = 1  # executable, but the code could not be read
    YES = 2


class SpaceCode:
    """The machine code of one address space, for checks: whether a stack word can be a return address, and which
    instructions are near a pc.
    """

    def __init__(
        self,
        space: AddressSpace,
        images: ImageStore,
        arch: Arch,
        is_reserved: Callable[[int], bool] = lambda avma: False,
    ) -> None:
        """Create a check of return addresses in one address space.

        Args:
            space: The address space.
            images: The object files of the recording.
            arch: The architecture of the process.
            is_reserved: Returns True for addresses that a runtime has reserved for code.
        """
        self._space = space
        self._is_reserved = is_reserved
        self._images = images
        self._arch = arch
        self._verdicts: dict[int, Verdict] = {}

    def read(self, avma: int, size: int) -> bytes:
        """Return the bytes of the target's code at an address, `size` bytes or fewer."""
        image = self._images.image(self._space, avma)
        if image is not None:
            return bytes(image.file.at_svma(image.svma(avma), size))
        mapping = self._space.mapping_at(avma)
        may_be_code = mapping.executable if mapping is not None else not self._space.complete
        return self._space.read(avma, size) if may_be_code or self._is_reserved(avma) else b""

    def is_executable(self, avma: int) -> bool:
        mapping = self._space.mapping_at(avma)
        return (mapping is not None and mapping.executable) or self._is_reserved(avma)

    def is_readable(self, avma: int) -> bool:
        """Return True if the address is code of the target whose bytes are available.

        A core file may omit the code of mapped files.
        """
        return self.is_executable(avma) and bool(self.read(avma, 1))

    def is_impossible(self, avma: int) -> bool:
        """Return True if the address cannot be code of the target.

        That holds in a mapping that is not executable. It also holds outside all mappings if the address is too low or
        in the kernel's half. Other unmapped addresses may be code that was mapped after the mappings were read.
        """
        mapping = self._space.mapping_at(avma)
        if mapping is not None:
            return not (mapping.executable or self._is_reserved(avma))  # a board's code may begin at 0
        return avma < LOWEST_CODE or (self._arch.word == 8 and avma >> 63 != 0)

    def classify_return_address(self, avma: int) -> Verdict:
        """Judge whether an address can be a return address, and return a Verdict: it must be code directly after a
        call.
        """
        known = self._verdicts.get(avma)
        if known is None:
            if len(self._verdicts) >= _ROOM:
                self._verdicts.clear()
            known = self._verdicts[avma] = self._judge(avma)
        return known

    def _judge(self, avma: int) -> Verdict:
        if not self.is_executable(avma - 1):
            return Verdict.NO
        before = self.read(avma - CALL_BYTES, CALL_BYTES)
        if len(before) < CALL_BYTES:
            return Verdict.UNKNOWN
        return Verdict.YES if self._arch.calls.follows_call(before) else Verdict.NO

    def call_target(self, return_address: int) -> int | None:
        """Return the target of the direct call before a return address, or None for an indirect call."""
        return self._arch.calls.call_target(self.read(return_address - CALL_BYTES, CALL_BYTES), return_address)

    def is_jump(self, avma: int) -> bool:
        """Return True if the code at an address only jumps elsewhere, as a PLT entry or a linker's trampoline does."""
        return self._arch.calls.jumps(self.read(avma, 16))


MAX_EPILOGUE_BYTES = 64
"""Maximum number of bytes of code after a pc that are examined for instructions that end in a return."""


def epilogue_rule(arch: Arch, code: bytes) -> Rule | None:
    """Return the unwind rule at the start of code that only undoes the frame and returns (an epilogue), or None for
    other code.
    """
    steps = arch.calls.epilogue(code) if arch.calls.epilogue is not None else None
    if steps is None:
        return None
    base, height = arch.sp, 0
    found: dict[int, int] = {}  # column -> offset from base of the word that it is popped from
    pushed: dict[int, int] = {}  # offset of a word that is pushed on the way -> column
    for what, operand in steps:
        if what == "sp":
            height += operand
        elif what == "push":
            height -= arch.word
            pushed[height] = operand
        elif what == "fp":  # sp = fp
            if found or base != arch.sp:
                return None
            base, height = arch.fp, 0
            pushed.clear()
        else:
            if height in pushed:
                if pushed[height] != operand:
                    return None
            elif height < 0 or operand in found:
                return None
            else:
                found[operand] = height
            height += arch.word
    cfa = height + arch.word
    regs = {column: RegRule(RegKind.AT_CFA, offset - cfa) for column, offset in found.items()}
    if height < 0:
        return None
    return Rule(base, cfa, RegRule(RegKind.AT_CFA, -arch.word), tuple(sorted(regs.items())))


def sigreturn_rule(arch: Arch, frame: SigFrame) -> Rule:
    """Return the unwind rule that restores all registers, sp included, from the kernel's signal context: r = [sp +
    offset].
    """
    regs = tuple(
        (column, RegRule(RegKind.AT_REG, offset, arch.sp))
        for column, offset in sorted(frame.saved.items())
        if column != arch.pc
    )
    return Rule(
        cfa_reg=arch.sp,
        cfa_off=frame.saved[arch.sp],
        cfa_deref=True,
        ra=RegRule(RegKind.AT_REG, frame.saved[arch.pc], arch.sp),
        regs=regs,
        signal=True,
    )


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
    """Return the unwind rule for code that has already loaded the registers of a frame which is not its caller, as
    longjmp(3) and __builtin_eh_return do.

    The CFA is sp. There is no rule for the return address, because the caller cannot be found any more.
    """
    return Rule(arch.sp, 0, UNDEFINED, replacing=True)


def restores_other_frame(rule: Rule, arch: Arch) -> bool:
    """Return True if an unwind rule loads registers from a buffer, and so describes a frame that is not the caller, as
    the rule of longjmp(3) does.
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
