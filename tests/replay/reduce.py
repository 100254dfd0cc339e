"""Reduction of an object file to what the stacks of one recording need.

All other bytes become zeros, which compress well. Small files stay complete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Set

from pyprof.objfile.elf_file import ElfFile

WHOLE = 1 << 16
AROUND = 256
"""Number of bytes of code to keep on both sides of an address, which is the reach of searches for calls and
epilogues.
"""
KEPT = (".shstrtab", ".dynamic", ".interp", ".gnu_debuglink")
STUBS = (".plt", ".plt.got", ".plt.sec")
NAMES_OF_STUBS = (*STUBS, ".rela.plt", ".rela.dyn", ".got", ".got.plt", ".dynsym", ".dynstr")
"""Sections from which the names of PLT entries are derived."""


def reduced(data: bytes, elf: ElfFile, svmas: Set[int]) -> bytes:
    """Return the reduced file.

    Args:
        data: The file, a 64-bit little-endian ELF file unless it is small.
        elf: The same file, parsed.
        svmas: Addresses in this file that were looked up.
    """
    if len(data) <= WHOLE:
        return data
    assert data[4:6] == b"\x02\x01", "only small files of other kinds are kept"
    out = bytearray(len(data))

    def keep(start: int, end: int) -> None:
        out[start:end] = data[start:end]

    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    phentsize, phnum, shentsize, shnum, _ = struct.unpack_from("<5H", data, 54)
    keep(0, 64)
    keep(phoff, phoff + phentsize * phnum)
    keep(shoff, shoff + shentsize * shnum)
    keep(0, elf.headers_size)
    stubs = [elf.sections[name] for name in STUBS if name in elf.sections]
    in_stubs = any(stub.addr <= svma < stub.addr + stub.size for stub in stubs for svma in svmas)
    for name, section in elf.sections.items():
        if section.type == 8:  # 8 is SHT_NOBITS
            continue
        begin, end = section.offset, section.offset + section.size
        if name in KEPT or name.startswith(".note") or name == ".eh_frame_hdr" or (in_stubs and name in NAMES_OF_STUBS):
            keep(begin, end)
        elif name == ".eh_frame":
            for start, stop in _entries(data, begin, end, section.addr, svmas):
                keep(start, stop)
        elif name in (".symtab", ".dynsym"):
            strings = elf.sections[".strtab" if name == ".symtab" else ".dynstr"]
            for at in range(begin, end, 24):
                text, _, _, _, value, size = struct.unpack_from("<IBBHQQ", data, at)
                if any(value <= svma < value + max(size, 1) for svma in svmas):
                    keep(at, at + 24)
                    first = strings.offset + text
                    keep(first, data.index(b"\0", first))
        elif name.startswith((".debug", ".zdebug", ".gnu_debugdata")):
            _forget(out, shoff, shentsize, shnum, section.offset)
    for svma in svmas:
        for load in elf.loads:
            if load.vaddr <= svma < load.vaddr + load.filesz:
                at = svma - load.vaddr + load.offset
                keep(max(at - AROUND, load.offset), min(at + AROUND, load.offset + load.filesz))
    return bytes(out)


def _forget(out: bytearray, shoff: int, size: int, count: int, offset: int) -> None:
    """Change the section at this file offset to SHT_NOBITS."""
    for at in range(shoff, shoff + size * count, size):
        if struct.unpack_from("<Q", out, at + 24)[0] == offset:
            struct.pack_into("<I", out, at + 4, 8)


def _entries(data: bytes, begin: int, end: int, addr: int, svmas: Set[int]) -> Iterator[tuple[int, int]]:
    """Yield the file ranges of all CIEs, of the FDEs that cover an address, and of the headers of the other FDEs."""
    at = begin
    while at + 4 <= end:
        length = struct.unpack_from("<I", data, at)[0]
        stop = at + 4 + length
        if not length:
            yield at, at + 4
        elif not struct.unpack_from("<I", data, at + 4)[0]:
            yield at, stop
        else:
            # the compilers of all recorded files encode pointers as pcrel sdata4
            place = at + 8
            start = place - begin + addr + struct.unpack_from("<i", data, place)[0]
            size = struct.unpack_from("<I", data, place + 4)[0]
            hit = any(start <= svma < start + size for svma in svmas)
            yield at, stop if hit else at + 16
        at = stop if length else at + 4
