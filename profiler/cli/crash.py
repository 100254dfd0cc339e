"""Why a process died, in words: the signal (signal(7), sigaction(2)), or the exception of Windows (winnt.h)."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyprof.objfile.crash_dump import DumpException

CODES = {
    ("SIGSEGV", 1): "SEGV_MAPERR",
    ("SIGSEGV", 2): "SEGV_ACCERR",
    ("SIGSEGV", 4): "SEGV_PKUERR",
    ("SIGSEGV", 9): "SEGV_MTESERR",
    ("SIGBUS", 1): "BUS_ADRALN",
    ("SIGBUS", 2): "BUS_ADRERR",
    ("SIGBUS", 3): "BUS_OBJERR",
    ("SIGFPE", 1): "FPE_INTDIV",
    ("SIGSEGV", 3): "SEGV_BNDERR",
    ("SIGFPE", 2): "FPE_INTOVF",
    ("SIGILL", 3): "ILL_ILLADR",
    ("SIGILL", 4): "ILL_ILLTRP",
    ("SIGILL", 5): "ILL_PRVOPC",
    ("SIGTRAP", 1): "TRAP_BRKPT",
    ("SIGILL", 1): "ILL_ILLOPC",
    ("SIGILL", 2): "ILL_ILLOPN",
}


EXCEPTIONS = {
    0x40010005: "DBG_CONTROL_C",
    0x80000001: "EXCEPTION_GUARD_PAGE",
    0x80000002: "EXCEPTION_DATATYPE_MISALIGNMENT",
    0x80000003: "EXCEPTION_BREAKPOINT",
    0x80000004: "EXCEPTION_SINGLE_STEP",
    0xC0000005: "EXCEPTION_ACCESS_VIOLATION",
    0xC0000006: "EXCEPTION_IN_PAGE_ERROR",
    0xC0000008: "EXCEPTION_INVALID_HANDLE",
    0xC000001D: "EXCEPTION_ILLEGAL_INSTRUCTION",
    0xC0000025: "EXCEPTION_NONCONTINUABLE_EXCEPTION",
    0xC0000026: "EXCEPTION_INVALID_DISPOSITION",
    0xC000008C: "EXCEPTION_ARRAY_BOUNDS_EXCEEDED",
    0xC000008D: "EXCEPTION_FLT_DENORMAL_OPERAND",
    0xC000008E: "EXCEPTION_FLT_DIVIDE_BY_ZERO",
    0xC000008F: "EXCEPTION_FLT_INEXACT_RESULT",
    0xC0000090: "EXCEPTION_FLT_INVALID_OPERATION",
    0xC0000091: "EXCEPTION_FLT_OVERFLOW",
    0xC0000092: "EXCEPTION_FLT_STACK_CHECK",
    0xC0000093: "EXCEPTION_FLT_UNDERFLOW",
    0xC0000094: "EXCEPTION_INT_DIVIDE_BY_ZERO",
    0xC0000095: "EXCEPTION_INT_OVERFLOW",
    0xC0000096: "EXCEPTION_PRIV_INSTRUCTION",
    0xC00000FD: "EXCEPTION_STACK_OVERFLOW",
    0xC0000194: "EXCEPTION_POSSIBLE_DEADLOCK",
    0xC0000374: "STATUS_HEAP_CORRUPTION",
    0xC0000409: "STATUS_STACK_BUFFER_OVERRUN",
    0xE06D7363: "unhandled C++ exception",
    0x0517A7ED: "simulated exception",
}
ADDRESS_SIGNALS = frozenset({4, 5, 7, 8, 11})
"""SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV: of Linux."""
ABOUT_MEMORY = (0xC0000005, 0xC0000006)
"""Exceptions whose parameters say which access was tried, and where."""
ACCESSES = {0: "_READ", 1: "_WRITE", 8: "_EXEC"}


@dataclass(frozen=True, slots=True)
class CrashSignal:
    """code: "" if it says nothing more. address: that was accessed or executed, None where the signal is about none."""

    number: int
    name: str
    code: str
    address: int | None

    @property
    def text(self) -> str:
        words = [self.name, self.code]
        if self.address is not None:
            words.append(f"at {self.address:#x}")
        return " ".join(word for word in words if word)

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "name": self.name,
            "code": self.code or None,
            "address": None if self.address is None else f"{self.address:#x}",
        }


def crash_signal(told: tuple[int, int, int | None] | None) -> CrashSignal | None:
    """told: (number, si_code, address). Numbers are those of all architectures that pyprof knows."""
    if told is None:
        return None
    number, code, address = told
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return CrashSignal(number, name, CODES.get((name, code), ""), address)


@dataclass(frozen=True, slots=True)
class CrashReason:
    """What a crash dump says. code, flags: as it has them. address: None where it is about none."""

    tid: int
    name: str
    code: int
    flags: int
    address: int | None
    parameters: tuple[int, ...]

    @property
    def text(self) -> str:
        return self.name if self.address is None else f"{self.name} at {self.address:#x}"

    def to_json(self) -> dict[str, Any]:
        return {
            "tid": self.tid,
            "reason": self.name,
            "code": f"{self.code:#x}",
            "flags": f"{self.flags:#x}",
            "address": None if self.address is None else f"{self.address:#x}",
            "parameters": [f"{value:#x}" for value in self.parameters],
        }


def crash_reason(system: str, told: DumpException | None) -> CrashReason | None:
    """system: CrashDump.os."""
    if told is None:
        return None
    address: int | None = told.address
    if system == "windows":
        name = EXCEPTIONS.get(told.code, f"exception {told.code:#x}")
        if told.code in ABOUT_MEMORY and len(told.parameters) >= 2:
            name += ACCESSES.get(told.parameters[0], "")
            address = told.parameters[1]
    elif system in ("linux", "android"):
        signal_ = crash_signal((told.code, told.flags, told.address))
        assert signal_ is not None
        name = " ".join(word for word in (told.name or signal_.name, signal_.code) if word)
        address = told.address if told.code in ADDRESS_SIGNALS else None
    else:
        name = f"exception {told.code:#x}"
    return CrashReason(told.tid, name, told.code, told.flags, address, told.parameters)
