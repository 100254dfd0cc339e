"""Code of the target: decides whether a word can be a return address.

Code comes from the file of the module. Only code without a file is read from the target's memory. Results are kept per
address space: code that is rewritten at run time keeps its address and its role.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.objfile.images import ImageStore
from pyprof.unwind.table import MetPcs

U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

CALL_BYTES = 8
"""The longest call instruction that we look for, in bytes."""

LOWEST_CODE = 1 << 16
"""Nothing is mapped below (vm.mmap_min_addr)."""

_ROOM = 1 << 16


class Verdict(IntEnum):
    NO = 0
    UNKNOWN = 1  # executable, but the code could not be read
    YES = 2


class SpaceCode:
    """Code of one address space."""

    def __init__(self, space: AddressSpace, images: ImageStore, arch: Arch) -> None:
        self._space = space
        self._images = images
        self._arch = arch
        self._verdicts: dict[int, Verdict] = {}
        self._met: dict[str, MetPcs] = {}

    def read(self, avma: int, size: int) -> bytes:
        """At most size bytes of code at avma."""
        image = self._images.image(self._space, avma)
        if image is not None:
            return bytes(image.file.at_svma(image.svma(avma), size))
        mapping = self._space.mapping_at(avma)
        may_be_code = mapping.executable if mapping is not None else not self._space.complete
        return self._space.read(avma, size) if may_be_code else b""

    def executable(self, avma: int) -> bool:
        mapping = self._space.mapping_at(avma)
        return mapping is not None and mapping.executable

    def is_readable(self, avma: int) -> bool:
        """avma is code that can be looked at: not left out of a core file whose files are not here."""
        return self.executable(avma) and bool(self.read(avma, 1))

    def impossible(self, avma: int) -> bool:
        """avma is no code: in a mapping that may not be executed, or in none, and too low or in the kernel's half.

        Where nothing is known to be mapped there may be code that came after the mappings were read.
        """
        mapping = self._space.mapping_at(avma)
        if mapping is not None:
            return not mapping.executable  # a board's code may begin at 0
        return avma < LOWEST_CODE or (self._arch.word == 8 and avma >> 63 != 0)

    def return_address(self, avma: int) -> Verdict:
        """Could avma be a return address: is it code, right behind a call?"""
        known = self._verdicts.get(avma)
        if known is None:
            if len(self._verdicts) >= _ROOM:
                self._verdicts.clear()
            known = self._verdicts[avma] = self._judge(avma)
        return known

    def return_addresses(self, avmas: U64) -> Mask:
        """(n,) Which of many return_address() does not deny."""
        return self._each("returns", avmas, lambda avma: self.return_address(avma) is not Verdict.NO)

    def possible(self, avmas: U64) -> Mask:
        """(n,) Which of many are not impossible()."""
        return self._each("possible", avmas, lambda avma: not self.impossible(avma))

    def _each(self, name: str, avmas: U64, question: Callable[[int], bool]) -> Mask:
        """The answer for each address, which stays what it is."""
        met = self._met.get(name)
        if met is None:
            met = self._met[name] = MetPcs()
        found = met.ids(avmas, lambda fresh: np.array([question(avma) for avma in fresh.tolist()], np.int64))
        return found.astype(np.bool_)

    def _judge(self, avma: int) -> Verdict:
        if not self.executable(avma - 1):
            return Verdict.NO
        before = self.read(avma - CALL_BYTES, CALL_BYTES)
        if len(before) < CALL_BYTES:
            return Verdict.UNKNOWN
        return Verdict.YES if self._arch.calls.follows_call(before) else Verdict.NO

    def call_target(self, return_address: int) -> int | None:
        """Where the direct call before a return address goes; None for an indirect call."""
        return self._arch.calls.call_target(self.read(return_address - CALL_BYTES, CALL_BYTES), return_address)

    def is_jump(self, avma: int) -> bool:
        """Does the code at avma only jump on: a PLT entry, a linker's trampoline?"""
        return self._arch.calls.jumps(self.read(avma, 16))
