"""The entries of an .ARM.exidx section according to readelf -u."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import need


@dataclass
class Said:
    """An entry.

    Attributes:
        start: Start address of the function.
        kind: "cantunwind", "inline", "table" or "generic".
        personality: Index of the personality routine, or its address if the kind is generic.
        opcodes: (bytes, meaning) of each instruction.
    """

    start: int
    kind: str
    personality: int = -1
    opcodes: list[tuple[str, str]] = field(default_factory=list)


def readelf_entries(path: Path) -> list[Said]:
    text = subprocess.run(
        [need("arm-linux-gnueabihf-readelf"), "-u", str(path)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    entries: list[Said] = []
    for line in text.splitlines():
        if head := re.match(r"0x([0-9a-f]+)(?: <[^>]*>)?: (0x1 \[cantunwind\]|@|0x)", line):
            kind = {"@": "table", "0x": "inline"}.get(head[2], "cantunwind")
            entries.append(Said(int(head[1], 16) & ~1, kind))
        elif compact := re.match(r"  Compact model index: (\d+)", line):
            entries[-1].personality = int(compact[1])
        elif generic := re.match(r"  Personality routine: 0x([0-9a-f]+)", line):
            entries[-1].kind = "generic"
            entries[-1].personality = int(generic[1], 16) & ~1
        elif opcode := re.match(r"  ((?:0x[0-9a-f]{2} ?)+) *(.*)", line):
            entries[-1].opcodes.append((opcode[1].replace("0x", "").strip(), opcode[2].strip()))
    return entries
