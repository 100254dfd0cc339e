"""Frames of 32-bit Windows code, by the STACK WIN records of its symbol file.

Such a record is not a rule for a pc. It depends on the callee, whose arguments take up space on the stack, and its
programs may read any register.
"""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.objfile.breakpad.records import WinRecord
from pyprof.objfile.breakpad.symbol_file import SymbolFile
from pyprof.objfile.loaded_images import ImageStore
from pyprof.unwind.formats.breakpad.postfix import PostfixFailed, PostfixProblem
from pyprof.unwind.formats.breakpad.stack_win_evaluation import INNERMOST, Callee, find_parameter_size, find_win_caller
from pyprof.unwind.sample_memory import LaneMemory
from pyprof.unwind.scalar import Caller, Fallback, NoCaller, Outcome, Registers

STACK_WIN_ARCH = "i386"


class StackWinRecords:
    """The STACK WIN records of the modules in one address space. All pcs are lookup pcs."""

    def __init__(self, space: AddressSpace, images: ImageStore) -> None:
        self._space = space
        self._images = images

    def find_record(self, pc: int) -> WinRecord | None:
        file, rel = self._symbols(pc)
        return file.win_at(rel) if file else None

    def has_record(self, pc: int) -> bool:
        return self.find_record(pc) is not None

    def find_parameter_size(self, pc: int) -> int:
        """Return the size in bytes of the arguments of the Windows function at a pc."""
        file, rel = self._symbols(pc)
        return find_parameter_size(file, rel) if file else 0

    def _symbols(self, pc: int) -> tuple[SymbolFile | None, int]:
        image = self._images.image(self._space, pc)
        return (None, 0) if image is None else (image.symbols, image.rel(pc))


class StackWinFallback:
    """A finder of callers in one address space by STACK WIN records, and by another fallback where they do not
    apply.
    """

    needs_all = True

    def __init__(self, arch: Arch, space: AddressSpace, records: StackWinRecords, otherwise: Fallback) -> None:
        self._arch = arch
        self._space = space
        self._records = records
        self._otherwise = otherwise
        self._columns = {f"${name}": column for column, name in enumerate(arch.registers)}
        self.enabled = otherwise.enabled

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome:
        """Return the caller of a frame by the STACK WIN record of its pc.

        The other fallback is used if there is no record, if it cannot be followed, or if it leads to no module. In the
        last case its sizes were not those of this frame.
        """
        arch = self._arch
        pc = lookup_pc(registers.values[arch.pc] or 0, registers.exact)
        record = self._records.find_record(pc)
        if record is None:
            return self._otherwise.caller(registers, memory)
        known = {name: value for name, value in zip(arch.registers, registers.values, strict=True) if value is not None}
        try:
            found = find_win_caller(record, known, self._callee(registers), memory.read)
        except PostfixFailed as failed:
            if failed.problem is PostfixProblem.UNREADABLE:
                sp = registers.values[arch.sp]
                mapping = self._space.mapping_at(failed.avma)
                if mapping is not None and mapping is self._space.mapping_at(sp or 0):
                    return NoCaller(StackEnd.UNREADABLE, missing=failed.avma)
            column = self._columns.get(failed.token, -1)
            if failed.problem is PostfixProblem.UNKNOWN_NAME and column in registers.withheld:
                return NoCaller(StackEnd.NO_RULE, needs=column)
            return self._otherwise.caller(registers, memory)
        if not found["eip"]:
            return NoCaller(StackEnd.ROOT)
        if found["esp"] <= known.get("esp", 0):
            return NoCaller(StackEnd.STUCK)
        values = [found.get(name) for name in arch.registers]
        if self._space.module_at(lookup_pc(found["eip"], False)) is None:
            return self._otherwise.caller(registers, memory)
        return Caller(Registers(values, False), found["esp"], Trust.BREAKPAD)

    def _callee(self, registers: Registers) -> Callee:
        return INNERMOST if registers.called is None else Callee(self._records.find_parameter_size(registers.called))
