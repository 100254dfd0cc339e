"""The caller of a frame of 32-bit x86 Windows code, by a STACK WIN record of a Breakpad symbol file.

All functions are pure. Registers have their names without "$"; those that are absent in a result are lost.
Source: docs/symbol_files.md of Breakpad; src/processor/stackwalker_x86.cc; the walker of rust-minidump,
breakpad-symbols/src/sym_file/walker.rs, which has the best description.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.objfile.breakpad.records import WinRecord
from pyprof.objfile.breakpad.symbol_file import SymbolFile
from pyprof.records import dataclass
from pyprof.unwind.dwarf_expressions import Read
from pyprof.unwind.formats.breakpad.postfix import PostfixFailed, PostfixProblem, run_program

WORD = 4
MASK = 0xFFFF_FFFF
FRAME_DATA, FPO = 4, 0
RESULTS = ("eip", "esp", "ebp", "ebx", "esi", "edi")
"""Registers that a STACK WIN program may assign for the caller."""
PRESERVED = ("ebp", "ebx", "esi", "edi")
SAVED = frozenset({"ebx", "esi", "edi"})
"""Registers that certainly count as saved in a STACK WIN record's size. An ebp that the frame is built on does not."""


@dataclass(frozen=True, slots=True)
class Callee:
    """The frame that the unwound STACK WIN frame called.

    Attributes:
        parameters: Size in bytes of its arguments on the stack, from its STACK WIN rather than its FUNC record; 0 in
            the innermost frame.
        innermost: There is no callee.
    """

    parameters: int = 0
    innermost: bool = False


INNERMOST = Callee(innermost=True)


def find_win_caller(record: WinRecord, registers: Mapping[str, int], callee: Callee, read: Read) -> dict[str, int]:
    """Return the caller's registers by a STACK WIN record. An eip of 0 is the end of the stack.

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

    A program with "@" aligns esp. Then the return address is found through ebp: the caller's ebp was pushed directly
    after it.
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
    used. A function that keeps ebp keeps ebx too, because walks through ntdll depend on it.
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
