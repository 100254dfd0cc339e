"""Stack scanning: a word on the stack that may be a return address. Only used if the user asks for it (--unwind scan).

Such a frame is a guess, and its trust says so. From sp upwards, the first word is taken that is the address of code
after a call and from which unwind tables lead to the root. If there is none, the first word that is the address of code
after a call is taken. The code may not be available (a module of a crash dump). Then an address counts if it lies
inside a function of the symbol file, or, without a symbol file, inside an executable mapping of a module.
Source: src/google_breakpad/processor/stackwalker.h of Breakpad (ScanForReturnAddress, InstructionAddressSeemsValid).
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.unwind.heuristics.rules_and_checks_from_code import SpaceCode, Verdict
from pyprof.unwind.reference_unwinder import Caller, Fallback, LaneWalk, Outcome, ReferenceUnwinder, Registers
from pyprof.unwind.sample_memory import LaneMemory

WORDS = 40
WORDS_INNERMOST = 160
"""Maximum number of stack words that are scanned for a return address: WORDS_INNERMOST in the innermost frame, WORDS in
others. Frames that have called a function have little left above sp.
"""

MAX_APART = 128 << 10
"""Maximum distance in bytes from a frame up to a frame pointer of its caller that the stack scan accepts."""

MAX_TRIED = 4096
"""Maximum number of frames of the walk by which the stack scan tests whether a guessed caller leads to the root."""


class ScanFallback:
    """A fallback that scans the stack in one address space where another fallback finds no caller."""

    def __init__(
        self,
        arch: Arch,
        space: AddressSpace,
        images: ImageStore,
        code: SpaceCode,
        otherwise: Fallback,
        trial: ReferenceUnwinder,
    ) -> None:
        self._arch = arch
        self._space = space
        self._images = images
        self._code = code
        self._otherwise = otherwise
        self.enabled = otherwise.enabled
        self._trial = trial
        self.needs_all = True  # the batch walker knows no fallback but frame records

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome:
        found = self._otherwise.caller(registers, memory)
        if isinstance(found, Caller) or found.end is not StackEnd.NO_RULE or found.no_frame:
            return found
        return self._scan(registers, memory) or found

    def _scan(self, registers: Registers, memory: LaneMemory) -> Caller | None:
        """Return the first guessed caller from which a walk reaches the root of the stack. If there is none, return the
        first guess.
        """
        first: Caller | None = None
        for found in self._candidates(registers, memory):
            if self._leads_to_root(found, memory):
                return found
            first = first or found
        return first

    def _candidates(self, registers: Registers, memory: LaneMemory) -> Iterator[Caller]:
        arch = self._arch
        sp = registers.values[arch.sp]
        for number in range(WORDS_INNERMOST if registers.exact else WORDS) if sp is not None else ():
            avma = (sp or 0) + number * arch.word
            word = memory.word(avma)
            if word is None:
                return
            pc = arch.code_address(word, pac=True)
            if self._plausible(pc):
                yield from self._found(registers, memory, avma, pc)

    def _leads_to_root(self, caller: Caller, memory: LaneMemory) -> bool:
        walk = LaneWalk([])
        self._trial.append_callers(walk, caller.registers, memory, MAX_TRIED)
        return walk.end is StackEnd.ROOT

    def _found(self, registers: Registers, memory: LaneMemory, avma: int, pc: int) -> Iterator[Caller]:
        """Yield the callers for one possible return address of a stack scan, with one or two frame pointers.

        The word below the return address may be the pushed frame pointer. That word is used if the current frame
        pointer points to it, and on i386, whose functions push it first, also if it points a little up the stack.
        Otherwise the frame pointer stays as it is if it points to outer frames. The word below is yielded as a second
        possibility.
        """
        arch = self._arch
        sp = avma + arch.word
        fp = registers.values[arch.fp]
        pushed = memory.word(avma - arch.word) if arch.lr < 0 else None
        near = pushed is not None and sp <= pushed <= sp + MAX_APART
        if pushed is not None and near and (arch.word == 4 or fp == avma - arch.word):
            fp = pushed
        fp = fp if fp is not None and fp >= sp else None
        yield self._caller(pc, sp, fp)
        if pushed is not None and pushed != fp and sp <= pushed and memory.holds(pushed):
            yield self._caller(pc, sp, pushed)

    def _caller(self, pc: int, sp: int, fp: int | None) -> Caller:
        arch = self._arch
        values: list[int | None] = [None] * len(arch.registers)
        values[arch.fp], values[arch.sp], values[arch.pc] = fp, sp, pc
        return Caller(Registers(values, False), sp, Trust.SCAN)

    def _plausible(self, pc: int) -> bool:
        verdict = self._code.classify_return_address(pc)
        if verdict is not Verdict.UNKNOWN:
            return verdict is Verdict.YES
        image = self._images.image(self._space, pc - 1)
        if image is None:
            return False
        symbols = image.symbols
        return symbols is None or symbols.function_at(image.rel(pc - 1)) is not None
