"""The frame pointer of a thread that was read from outside while it slept, found in its stack copy, or not at all.

Such a sample knows sp and pc only. If a frame needs the frame pointer and no inner frame saved it, each place of the
copy is tried as the frame's record, and one is believed only if everything from it to the root is proved: each return
address follows a call; a direct call goes to the start of the function that it is said to have called, or to a PLT
entry; the tables lead on, upwards, to the root; and no second place does as well.
"""

from __future__ import annotations

import numpy as np

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.unwind.code import Code, Verdict
from pyprof.unwind.fallback import returns_to_trampoline
from pyprof.unwind.index import SpaceIndex
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.scalar import LaneWalk, Registers, ScalarWalker
from pyprof.unwind.table import CFA_FP, RA_LR, SLOW, KnownRule, fast_form

MAX_CANDIDATES = 64
"""Places whose return address fits and which are walked to the root; more are not decided."""

MAX_PROOF = 4096
"""Frames to the root in which a proof must come to its end."""

MAX_WORDS = 1 << 17
"""Words of the stack copy that are looked at."""


_HIGHEST = (1 << 64) - 1


class Recovery:
    """Recovery in one address space."""

    def __init__(self, arch: Arch, space: AddressSpace, code: Code, index: SpaceIndex) -> None:
        self._arch = arch
        self._code = code
        self._index = index
        spans = [(m.start, m.end) for m in space.mappings if m.executable]
        self._starts = np.array([start for start, _ in spans], np.uint64)
        self._ends = np.array([min(end, _HIGHEST) for _, end in spans], np.uint64)

    def rest(
        self, walker: ScalarWalker, registers: Registers, memory: LaneMemory, known: KnownRule | None
    ) -> LaneWalk | None:
        """The callers of a frame whose rule needs the frame pointer; None where no record is proved."""
        arch = self._arch
        distance = self._ra_distance(known)
        sp = registers.values[arch.sp]
        if distance is None or sp is None or arch.fp not in registers.withheld:
            return None
        proved: LaneWalk | None = None
        candidates = self._candidates(memory, sp, distance)
        if len(candidates) > MAX_CANDIDATES:
            return None
        for fp in candidates:
            values = list(registers.values)
            values[arch.fp] = fp
            start = Registers(values, registers.exact, registers.withheld - {arch.fp})
            walk = LaneWalk([])
            walker.go_on(walk, start, memory, min(walker.max_depth, MAX_PROOF), self._linked)
            if walk.end is not StackEnd.ROOT or not walk.frames:
                continue
            if proved is not None:
                return None
            proved = walk
        if proved is not None:
            pc, exact, _, sp = proved.frames[0]
            proved.frames[0] = (pc, exact, Trust.FP, sp)
        return proved

    def _ra_distance(self, known: KnownRule | None) -> int | None:
        """Bytes from the frame pointer to the return address; None if the rule is not of that kind."""
        arch = self._arch
        if known is None:
            chain = arch.chain
            return chain.ra_off if chain is not None and chain.base == arch.fp and not chain.ra_in_next else None
        flags, cfa_off, ra_off, _ = fast_form(known.rule, arch)
        if flags & SLOW or flags & RA_LR or not flags & CFA_FP:
            return None
        return cfa_off + ra_off

    def _candidates(self, memory: LaneMemory, sp: int, distance: int) -> list[int]:
        """Frame pointers at or above sp whose return address is code behind a call, ascending."""
        first, words = memory.words(sp, MAX_WORDS)
        at = np.searchsorted(self._starts, words, side="right") - 1
        code = np.flatnonzero((at >= 0) & (words < self._ends[at]))
        size = self._arch.word
        found = []
        for place, word in zip(code.tolist(), words[code].tolist(), strict=True):
            fp = first + size * place - distance
            ra = self._arch.code_address(word, True)
            known = self._code.return_address(ra) is Verdict.YES or returns_to_trampoline(self._index.known, ra)
            if fp >= sp and known:
                found.append(fp)
        return found

    def _linked(self, callee: Registers, caller: Registers) -> bool:
        """Is it proved that caller called callee? Where a signal interrupted caller, the kernel's frame is proof."""
        if caller.exact:
            return True
        ra, pc = caller.values[self._arch.pc] or 0, callee.values[self._arch.pc] or 0
        if self._code.return_address(ra) is not Verdict.YES:
            return returns_to_trampoline(self._index.known, ra)
        target = self._code.call_target(ra)
        if target is None:
            return True
        start = self._index.function_start(lookup_pc(pc, callee.exact), callee.exact)
        return target == start or self._code.is_jump(target)
