"""Why a process died, in words: the signal, or the exception of Windows or macOS."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from pyprof.cli.crash_codes import (
    ABOUT_MEMORY,
    ACCESSES,
    ADDRESS_SIGNALS,
    CODES,
    EXCEPTIONS,
    FAST_FAILS,
    MACH_EXCEPTIONS,
    NS_EXCEPTION,
    STACK_BUFFER_OVERRUN,
)
from pyprof.records import dataclass

if TYPE_CHECKING:
    from pyprof.objfile.minidump.crash_dump import DumpException


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
        elif told.code == STACK_BUFFER_OVERRUN and told.parameters:
            name += f" {FAST_FAILS.get(told.parameters[0], f'fast fail {told.parameters[0]}')}"
    elif system in ("linux", "android"):
        signal_ = crash_signal((told.code, told.flags, told.address))
        assert signal_ is not None
        name = " ".join(word for word in (told.name or signal_.name, signal_.code) if word)
        address = told.address if told.code in ADDRESS_SIGNALS else None
    else:
        name = MACH_EXCEPTIONS.get(told.code, f"exception {told.code:#x}")
        address = None if told.code == NS_EXCEPTION else told.address
    return CrashReason(told.tid, name, told.code, told.flags, address, told.parameters)
