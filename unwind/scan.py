"""The last resort: a word on the stack that may be a return address. Only where the user asks for it (--unwind scan).

A guess, and said to be one in each frame. Believed is the first word from sp up that is code behind a call; where the
code is not here (a module of a crash dump) an address inside a function that its symbol file names, or, without a
symbol file, inside an executable mapping of a module.
Source: src/google_breakpad/processor/stackwalker.h of Breakpad (ScanForReturnAddress, InstructionAddressSeemsValid).
"""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import StackEnd, Trust
from pyprof.objfile.images import ImageStore
from pyprof.unwind.code import Code, Verdict
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.scalar import Caller, Fallback, Outcome, Registers

WORDS = 40
WORDS_INNERMOST = 160
MOST_APART = 128 << 10
"""Most bytes from a frame to its caller's frame pointer."""
"""Words that are looked at; a frame that called something is mostly small."""


class ScanFallback:
    """Guesses where another fallback has no rule. One address space."""

    def __init__(self, arch: Arch, space: AddressSpace, images: ImageStore, code: Code, otherwise: Fallback) -> None:
        self._arch = arch
        self._space = space
        self._images = images
        self._code = code
        self._otherwise = otherwise
        self.enabled = otherwise.enabled
        self.needs_all = True  # what the steps of many lanes do by themselves, they do by frame records only

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome:
        found = self._otherwise.caller(registers, memory)
        if isinstance(found, Caller) or found.end is not StackEnd.NO_RULE or found.no_frame:
            return found
        return self._scan(registers, memory) or found

    def _scan(self, registers: Registers, memory: LaneMemory) -> Caller | None:
        arch = self._arch
        sp = registers.values[arch.sp]
        if sp is None:
            return None
        for number in range(WORDS_INNERMOST if registers.exact else WORDS):
            avma = sp + number * arch.word
            word = memory.word(avma)
            if word is None:
                return None
            pc = arch.code_address(word, pac=True)
            if self._plausible(pc):
                return self._found(registers, memory, avma, pc)
        return None

    def _found(self, registers: Registers, memory: LaneMemory, avma: int, pc: int) -> Caller:
        """fp: the word below the return address where the own frame pointer points there, and on i386, whose functions
        push it first, also where it points a little up the stack; else as it was, if it points to callers' frames.
        """
        arch = self._arch
        values: list[int | None] = [None] * len(arch.registers)
        sp = avma + arch.word
        fp = registers.values[arch.fp]
        pushed = memory.word(avma - arch.word) if arch.lr < 0 else None
        near = pushed is not None and sp <= pushed <= sp + MOST_APART
        if pushed is not None and near and (arch.word == 4 or fp == avma - arch.word):
            fp = pushed
        values[arch.fp] = fp if fp is not None and fp >= sp else None
        values[arch.sp], values[arch.pc] = sp, pc
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
