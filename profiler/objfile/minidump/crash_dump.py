"""The content of a crash dump, independent of its format.

minidump/file.py and minidump/microdump.py create these values.
"""

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
"""Architecture of a crash dump by its processor: (ELF machine, ELF class, byte order)."""


def address_mask(processor: str) -> int:
    """Return the mask of an address in a crash dump. Windows sign-extends the addresses of 32-bit processes."""
    return (1 << ELF_MACHINES[processor][1]) - 1


@dataclass(frozen=True, slots=True)
class DumpThread:
    """A thread of a crash dump.

    Attributes:
        tid: Thread ID.
        registers: Values by the names of the architecture's columns.
        stack: (address, size in bytes) of the thread's saved stack.
        name: Name of the thread.
    """

    tid: int
    registers: dict[str, int]
    stack: tuple[int, int] = (0, 0)
    name: str = ""


@dataclass(frozen=True, slots=True)
class DumpModule:
    """A module of a crash dump.

    Attributes:
        base: Address of the module in the process.
        size: Size in bytes.
        path: Path, as the target names it.
        debug_id: See StatedId; build_id and debug_name likewise.
    """

    base: int
    size: int
    path: str
    debug_id: str = ""
    build_id: str = ""
    debug_name: str = ""


@dataclass(frozen=True, slots=True)
class DumpRegion:
    """A mapping of the process in a crash dump. `perms` is in the notation of /proc/PID/maps; `path` is "" if there is
    none.
    """

    start: int
    end: int
    perms: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class DumpException:
    """The exception or signal for which a crash dump was written.

    Attributes:
        tid: The thread that caused it.
        code: The signal on Linux, the exception code on Windows.
        flags: si_code on Linux, the exception flags on Windows.
        address: The address that caused it.
        parameters: Parameters of the exception.
        name: Its name in the dump, "" if the dump has none.
    """

    tid: int
    code: int
    flags: int
    address: int
    parameters: tuple[int, ...] = ()
    name: str = ""


@dataclass(slots=True)
class CrashDump:
    """The content of a crash dump, independent of its format.

    Attributes:
        os: "linux", "android", "windows", "mac" and so on, "" if it is unknown.
        processor: A key of ELF_MACHINES.
        memory: The memory in the dump.
        version: Version of the operating system.
        pid: Process ID, 0 if it is unknown.
        threads: The threads, in the order of the dump.
        modules: The modules.
        regions: The mappings.
        exception: The reason for the dump, None if it is unknown.
        requested_by: Thread ID of the thread that requested the dump, 0 if it is unknown.
        dumped_by: Thread ID of the thread that wrote the dump, 0 if it is unknown.
        auxv: Values by type.
        oddities: Number of tolerated errors, by description.
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
