"""The content of a crash dump, independent of its format: threads, registers, the exception.

Registers come from the CPU contexts of minidumps and microdumps. Source: CONTEXT of winnt.h for each processor;
src/google_breakpad/common/minidump_cpu_*.h of Breakpad.

objfile/minidump.py creates these values.
"""

from __future__ import annotations

import struct
from collections import Counter

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.objfile.core_file import SavedMemory


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a CPU context in a minidump.

    Attributes:
        fields: Offset of each register in bytes.
        word: Size of a register in bytes.
        size: Minimum size of a context with all registers.
    """

    fields: dict[str, int]
    word: int

    @property
    def size(self) -> int:
        return max(self.fields.values()) + self.word


def _row(start: int, word: int, *names: str) -> dict[str, int]:
    return {name: start + word * place for place, name in enumerate(names)}


LAYOUTS = {
    "x86": _Layout({**_row(156, 4, "edi", "esi", "ebx", "edx", "ecx", "eax", "ebp", "eip"), "esp": 196}, 4),
    "amd64": _Layout(
        _row(
            0x78,
            8,
            *("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"),
            *(f"r{n}" for n in range(8, 16)),
            "rip",
        ),
        8,
    ),
    "arm": _Layout(_row(4, 4, *(f"r{n}" for n in range(13)), "sp", "lr", "pc"), 4),
    "arm64": _Layout(_row(8, 8, *(f"x{n}" for n in range(31)), "sp", "pc"), 8),
}
"""Layouts of CPU contexts in minidumps, by processor. In Breakpad's old ARM64 context, the registers have the same
offsets.
"""


def read_context(processor: str, data: bytes | memoryview) -> dict[str, int] | None:
    """Return the registers in a minidump's CPU context, or None if the bytes are not a context of the given processor.

    Returns:
        Values by the names of the architecture's columns.
    """
    layout = LAYOUTS.get(processor)
    if layout is None or len(data) < layout.size:
        return None
    form = "<Q" if layout.word == 8 else "<I"
    return {name: struct.unpack_from(form, data, offset)[0] for name, offset in layout.fields.items()}


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
        debug_id: GUID and age in upper-case hex, "" if not stated. build_id, debug_name and time_stamp are as in
            StatedId.
    """

    base: int
    size: int
    path: str
    debug_id: str = ""
    build_id: str = ""
    debug_name: str = ""
    time_stamp: int = 0


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
        name: Name of the exception in the dump, "" if the dump has none.
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
        auxv: Values of the auxiliary vector by type (AT_*).
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
