"""STACK WIN records of a Breakpad symbol file: the callers of frames of 32-bit Windows code.

All functions are pure. Registers have their names without "$"; those that are absent in a result are lost.
Source: docs/symbol_files.md of Breakpad; src/processor/stackwalker_x86.cc; the walker of rust-minidump,
breakpad-symbols/src/sym_file/walker.rs, which has the best description.

Such a record is not a rule for a pc. It depends on the callee, whose arguments take up space on the stack, and its
programs may read any register.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.unwind_result import StackEnd, Trust, lookup_pc
from pyprof.objfile.breakpad_records import WinRecord
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.unwind.dwarf_expressions import Read
from pyprof.unwind.formats.breakpad_postfix_expressions import PostfixFailed, PostfixProblem, run_program
from pyprof.unwind.reference_unwinder import Caller, Fallback, NoCaller, Outcome, Registers
from pyprof.unwind.sample_memory import LaneMemory

WORD = 4
MASK = 0xFFFF_FFFF
FRAME_DATA, FPO = 4, 0
RESULTS = ("eip", "esp", "ebp", "ebx", "esi", "edi")
"""Registers that a STACK WIN program may assign for the caller."""
PRESERVED = ("ebp", "ebx", "esi", "edi")
SAVED = frozenset({"ebx", "esi", "edi"})
"""Registers that STACK WIN counts in the size of the saved registers. ebp is counted only if the frame is not built on
it.
"""


@dataclass(frozen=True, slots=True)
class Callee:
    """The facts about a callee (the next inner frame) that the unwinding of its caller by STACK WIN needs.

    Attributes:
        parameters: Size in bytes of the callee's arguments on the stack, from its STACK WIN record if there is one,
            else from its FUNC record. 0 if there is no callee.
        innermost: The frame to unwind is the innermost one and has no callee.
    """

    parameters: int = 0
    innermost: bool = False


INNERMOST = Callee(innermost=True)


def find_win_caller(record: WinRecord, registers: Mapping[str, int], callee: Callee, read: Read) -> dict[str, int]:
    """Return the caller's registers by the STACK WIN record of a frame. An eip of 0 is the end of the stack.

    Raises:
        PostfixFailed: The registers cannot be computed.
    """
    if record.program:
        return unwind_by_program(record, registers, callee, read)
    return unwind_by_frame_size(record, registers, callee, read)


def find_parameter_size(file: SymbolFile, address: int) -> int:
    """Return the argument size in bytes of the Windows function at an address: by STACK WIN, else by FUNC or PUBLIC,
    else 0.
    """
    record = file.win_at(address) or file.function_at(address) or file.public_at(address)
    return record.parameters if record else 0


def frame_size(record: WinRecord, callee: Callee) -> int:
    """Return the bytes from esp to the return address of a STACK WIN frame: locals, saved registers and the callee's
    arguments.
    """
    return record.locals + record.saved + callee.parameters


def unwind_by_program(record: WinRecord, registers: Mapping[str, int], callee: Callee, read: Read) -> dict[str, int]:
    """Return the caller's registers by STACK WIN frame data: a program that assigns them.

    A program with "@" aligns esp. Then the return address is found through ebp, because the function pushed the
    caller's ebp directly after the call.
    """
    if "@" in record.program:
        search = _known(registers, "ebp") + WORD
    else:
        search = _known(registers, "esp") + frame_size(record, callee)
    names = {f"${name}": value & MASK for name, value in registers.items()}
    names |= {
        ".cbParams": record.parameters,
        ".cbCalleeParams": callee.parameters,
        ".cbSavedRegs": record.saved,
        ".cbLocals": record.locals,
        ".raSearch": search & MASK,
        ".raSearchStart": search & MASK,
    }
    assigned = run_program(record.program, names, read, WORD)
    found = {name: assigned[f"${name}"] for name in RESULTS if f"${name}" in assigned}
    if WORD * len(found.keys() & SAVED) >= record.saved:  # all saved registers are assigned: the others are unchanged
        found |= {name: registers[name] for name in PRESERVED if name in registers and name not in found}
    for name in ("eip", "esp"):
        _known(found, name)
    return found


def unwind_by_frame_size(record: WinRecord, registers: Mapping[str, int], callee: Callee, read: Read) -> dict[str, int]:
    """Return the caller's registers by STACK WIN FPO data: the sizes give the place of the return address.

    The innermost frame of a system call may have a stale return address equal to its own eip. Then the next word is
    used. A function that does not save ebp is assumed to preserve ebx, too, because walks through ntdll depend on that.
    """
    esp = _known(registers, "esp")
    at = esp + frame_size(record, callee)
    eip = _word(read, at)
    if callee.innermost and eip == registers.get("eip"):
        at += WORD
        eip = _word(read, at)
    found = {"eip": eip, "esp": at + WORD & MASK}
    if record.allocates_base_pointer:
        found["ebp"] = _word(read, esp + callee.parameters + record.saved - 8)
    else:
        found |= {name: registers[name] for name in ("ebp", "ebx") if name in registers}
    return found


def _known(registers: Mapping[str, int], name: str) -> int:
    if name not in registers:
        raise PostfixFailed(PostfixProblem.UNKNOWN_NAME, f"${name}")
    return registers[name]


def _word(read: Read, avma: int) -> int:
    value = read(avma & MASK, WORD)
    if value is None:
        raise PostfixFailed(PostfixProblem.UNREADABLE, "^", avma & MASK)
    return value


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

        The other fallback is used if there is no record, or if the record cannot be executed. It is also used if the
        record's return address is in no module, because the sizes of the record are then wrong for this frame.
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
