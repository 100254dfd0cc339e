"""ELF files that contain given sections with addresses, and one PT_LOAD for code."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

SHF_ALLOC, SHF_COMPRESSED = 2, 0x800
PT_LOAD, PT_GNU_EH_FRAME, PF_X = 1, 0x6474E550, 1


@dataclass
class Content:
    data: bytes
    svma: int = 0
    flags: int = 0


def compressed(data: bytes) -> Content:
    """Return a section compressed with zlib and an SHF_COMPRESSED header (gABI: type, reserved, size, alignment)."""
    return Content(struct.pack("<IIQQ", 1, 0, len(data), 1) + zlib.compress(data), flags=SHF_COMPRESSED)


def elf_bytes(
    sections: dict[str, Content], code: tuple[int, int] | None = (0x1000, 0x10000), headers: bool = True
) -> bytes:
    """Return an x86-64 ET_DYN file.

    Args:
        sections: Contents by name. A section with an address has a separate PT_LOAD.
        code: Address range of an executable PT_LOAD.
        headers: Whether to write section headers, which a stripped image lacks.
    """
    names, body, rows, loads = b"\0", bytearray(64 + 56 * 8), [bytes(64)], []
    for name, content in sections.items():
        body += bytes(-len(body) % 8)
        at = len(body)
        body += content.data
        size = len(content.data)
        rows.append(struct.pack("<IIQQQQIIQQ", len(names), 1, content.flags, content.svma, at, size, 0, 0, 1, 0))
        names += name.encode() + b"\0"
        if content.svma:
            loads.append((PT_LOAD, 4, at, content.svma, size))
            if name == ".eh_frame_hdr":
                loads.append((PT_GNU_EH_FRAME, 4, at, content.svma, size))
    if code:
        loads.append((PT_LOAD, 5, len(body), code[0], code[1] - code[0]))
    rows.append(struct.pack("<IIQQQQIIQQ", len(names), 3, 0, 0, len(body), len(names) + 10, 0, 0, 1, 0))
    names += b".shstrtab\0"
    body += names
    body += bytes(-len(body) % 8)
    table = len(body)
    body += b"".join(rows)
    assert len(loads) <= 8
    for number, (kind, flags, at, svma, size) in enumerate(loads):
        struct.pack_into("<IIQQQQQQ", body, 64 + 56 * number, kind, flags, at, svma, svma, size, size, 8)
    where = (table, len(rows), len(rows) - 1) if headers else (0, 0, 0)
    struct.pack_into(
        "<16sHHIQQQIHHHHHH",
        body,
        0,
        b"\x7fELF\x02\x01\x01",
        *(3, 62, 1, 0, 64, where[0], 0, 64, 56, len(loads), 64, where[1], where[2]),
    )
    return bytes(body)
