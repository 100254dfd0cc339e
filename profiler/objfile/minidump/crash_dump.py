"""The content of a crash dump, whatever its format: minidump.py and minidump/microdump.py make these values."""

from __future__ import annotations

from collections import Counter

from pyprof.objfile.core.memory import SavedMemory
from pyprof.records import dataclass, field

ELF_MACHINES = {
    "x86": (3, 32, "little"),
    "amd64": (62, 64, "little"),
    "arm": (40, 32, "little"),
    "arm64": (183, 64, "little"),
}
"""Processor -> ELF machine, class and byte order of its architecture here."""


def address_mask(processor: str) -> int:
    """The bits of an address: Windows extends those of 32-bit processes by their sign."""
    return (1 << ELF_MACHINES[processor][1]) - 1


@dataclass(frozen=True, slots=True)
class DumpThread:
    """registers: by the names of the architecture's columns. sp: where its stack was saved, (avma, bytes)."""

    tid: int
    registers: dict[str, int]
    stack: tuple[int, int] = (0, 0)
    name: str = ""


@dataclass(frozen=True, slots=True)
class DumpModule:
    """base: avma; size in bytes. path: as the target names it. debug_id, build_id, debug_name: see StatedId."""

    base: int
    size: int
    path: str
    debug_id: str = ""
    build_id: str = ""
    debug_name: str = ""


@dataclass(frozen=True, slots=True)
class DumpRegion:
    """A mapping of the target. perms: as in /proc/PID/maps; path: "" for none."""

    start: int
    end: int
    perms: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class DumpException:
    """Why the dump was written. code, flags: of Linux the signal and its si_code; of Windows the exception's.

    name: as the dump itself names it, "" if it does not.
    """

    tid: int
    code: int
    flags: int
    address: int
    parameters: tuple[int, ...] = ()
    name: str = ""


@dataclass(slots=True)
class CrashDump:
    """os: "linux", "android", "windows", "mac"..., "" if not known. processor: key of ELF_MACHINES.

    threads: in the dump's order. requested_by, dumped_by: tid of the thread that asked for the dump, that wrote it, 0
    where not known. auxv: type -> value. pid: 0 where not known. version: of the operating system.
    """

    os: str
    processor: str
    memory: SavedMemory
    version: str = ""
    pid: int = 0
    threads: list[DumpThread] = field(default_factory=list)
    modules: list[DumpModule] = field(default_factory=list)
    regions: list[DumpRegion] = field(default_factory=list)
    exception: DumpException | None = None
    requested_by: int = 0
    dumped_by: int = 0
    auxv: dict[int, int] = field(default_factory=dict)
    oddities: Counter[str] = field(default_factory=Counter)
