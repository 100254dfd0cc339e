"""Code of the target, to decide whether a word can be a return address.

Code is read from the module's file, and from the target's memory only if there is no file. Results are cached per
address space, also for generated code: code that is rewritten keeps its address and its purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.objfile.loaded_images import ImageStore

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
    """The code of one address space, by which a stack word can be judged as a possible return address."""

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
            images: Its files.
            arch: Its architecture.
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
        """Return whether the address can be a return address: it must be code directly after a call."""
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
