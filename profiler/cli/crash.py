"""The signal that killed a process, in words (signal(7), sigaction(2))."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

CODES = {
    ("SIGSEGV", 1): "SEGV_MAPERR",
    ("SIGSEGV", 2): "SEGV_ACCERR",
    ("SIGSEGV", 4): "SEGV_PKUERR",
    ("SIGSEGV", 9): "SEGV_MTESERR",
    ("SIGBUS", 1): "BUS_ADRALN",
    ("SIGBUS", 2): "BUS_ADRERR",
    ("SIGBUS", 3): "BUS_OBJERR",
    ("SIGFPE", 1): "FPE_INTDIV",
    ("SIGILL", 1): "ILL_ILLOPC",
    ("SIGILL", 2): "ILL_ILLOPN",
}


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
