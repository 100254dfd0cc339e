"""Stack scanning: a word on the stack that may be a return address. Only used if the user asks for it (--unwind scan).

A guess, and marked as such in each frame. The first word from sp up is taken that is the address of code after a call
and from where the tables reach the root; if there is none, the first that is the address of code after a call. Where
the code is not available (a module of a crash dump), an address counts if it lies inside a function that the symbol
file names, or, without a symbol file, inside an executable mapping of a module.
Source: src/google_breakpad/processor/stackwalker.h of Breakpad (ScanForReturnAddress, InstructionAddressSeemsValid).
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import StackEnd, Trust
from pyprof.objfile.images import ImageStore
from pyprof.unwind.code import SpaceCode, Verdict
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.scalar import Caller, Fallback, LaneWalk, Outcome, Registers, ScalarWalker

WORDS = 40
WORDS_INNERMOST = 160
"""Words that are looked at; a frame that called something is mostly small."""

MOST_APART = 128 << 10
"""Most bytes from a frame to its caller's frame pointer."""

MOST_TRIED = 4096
"""Frames in which a guess must lead to the root."""


class ScanFallback:
    """Guesses where another fallback has no rule. One address space. trial: walks without guesses."""

    def __init__(
        self,
        arch: Arch,
        space: AddressSpace,
        images: ImageStore,
        code: SpaceCode,
        otherwise: Fallback,
        trial: ScalarWalker,
    ) -> None:
        self._arch = arch
        self._space = space
        self._images = images
        self._code = code
        self._otherwise = otherwise
        self.enabled = otherwise.enabled
        self._trial = trial
        self.needs_all = True  # what the steps of many lanes do by themselves, they do by frame records only

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome:
        found = self._otherwise.caller(registers, memory)
        if isinstance(found, Caller) or found.end is not StackEnd.NO_RULE or found.no_frame:
            return found
        return self._scan(registers, memory) or found

    def _scan(self, registers: Registers, memory: LaneMemory) -> Caller | None:
        """The first candidate from which the walk goes on to the root; else the first one."""
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
        self._trial.go_on(walk, caller.registers, memory, MOST_TRIED)
        return walk.end is StackEnd.ROOT

    def _found(self, registers: Registers, memory: LaneMemory, avma: int, pc: int) -> Iterator[Caller]:
        """fp: the word below the return address where the own frame pointer points there, and on i386, whose functions
        push it first, also where it points a little up the stack; else as it was, if it points to callers' frames.
        Then, to be tried, that word as it is.
        """
        arch = self._arch
        sp = avma + arch.word
        fp = registers.values[arch.fp]
        pushed = memory.word(avma - arch.word) if arch.lr < 0 else None
        near = pushed is not None and sp <= pushed <= sp + MOST_APART
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
        verdict = self._code.return_address(pc)
        if verdict is not Verdict.UNKNOWN:
            return verdict is Verdict.YES
        image = self._images.image(self._space, pc - 1)
        if image is None:
            return False
        symbols = image.symbols
        return symbols is None or symbols.function_at(image.rel(pc - 1)) is not None
