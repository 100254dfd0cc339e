"""Registers from the CPU contexts of minidumps and microdumps.

Source: CONTEXT of winnt.h for each processor; src/google_breakpad/common/minidump_cpu_*.h of Breakpad.
"""

from __future__ import annotations

import struct

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a CPU context in a minidump.

    Attributes:
        fields: Offset of each register.
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
    """Return the registers in a minidump's CPU context, or None if it is not a context of that processor.

    Returns:
        Values by the names of the architecture's columns.
    """
    layout = LAYOUTS.get(processor)
    if layout is None or len(data) < layout.size:
        return None
    form = "<Q" if layout.word == 8 else "<I"
    return {name: struct.unpack_from(form, data, offset)[0] for name, offset in layout.fields.items()}
