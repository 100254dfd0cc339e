"""The reason for a process's death in words: the signal, or the exception of Windows or macOS."""

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
    """The signal that killed a process, with its code and address.

    Attributes:
        number: Signal number.
        name: Name of the signal.
        code: Name of si_code, "" if it has no meaning.
        address: Address that was accessed or executed, None if the signal is not about an address.
    """

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


def crash_signal(recorded: tuple[int, int, int | None] | None) -> CrashSignal | None:
    """Return the signal for which a core file was written.

    Signal numbers are the same on all architectures that pyprof supports.

    Args:
        recorded: (number, si_code, address).
    """
    if recorded is None:
        return None
    number, code, address = recorded
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return CrashSignal(number, name, CODES.get((name, code), ""), address)


@dataclass(frozen=True, slots=True)
class CrashReason:
    """The reason for a crash according to a crash dump.

    Attributes:
        code: Exception or signal number, as in the dump.
        flags: Flags of the exception, as in the dump.
        address: None if the reason is not about an address.
    """

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


def crash_reason(system: str, recorded: DumpException | None) -> CrashReason | None:
    """Return the reason of a crash from a crash dump; system is CrashDump.os."""
    if recorded is None:
        return None
    address: int | None = recorded.address
    if system == "windows":
        name = EXCEPTIONS.get(recorded.code, f"exception {recorded.code:#x}")
        if recorded.code in ABOUT_MEMORY and len(recorded.parameters) >= 2:
            name += ACCESSES.get(recorded.parameters[0], "")
            address = recorded.parameters[1]
        elif recorded.code == STACK_BUFFER_OVERRUN and recorded.parameters:
            name += f" {FAST_FAILS.get(recorded.parameters[0], f'fast fail {recorded.parameters[0]}')}"
    elif system in ("linux", "android"):
        signal_ = crash_signal((recorded.code, recorded.flags, recorded.address))
        assert signal_ is not None
        name = " ".join(word for word in (recorded.name or signal_.name, signal_.code) if word)
        address = recorded.address if recorded.code in ADDRESS_SIGNALS else None
    else:
        name = MACH_EXCEPTIONS.get(recorded.code, f"exception {recorded.code:#x}")
        address = None if recorded.code == NS_EXCEPTION else recorded.address
    return CrashReason(recorded.tid, name, recorded.code, recorded.flags, address, recorded.parameters)
