"""Core files of programs whose qemu-user writes none, created from memory and registers of the emulator's gdb stub.

The guest's memory lies at the same addresses in the emulator's address space, with the same file mappings.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pyprof.collectors.gdb_stub.remote_serial import PacketLink
from pyprof.collectors.linux.procfs import parse_maps
from pyprof.model.address_space import Mapping
from pyprof.model.arch import RISCV64
from pyprof.objfile.elf_file import ElfFile
from tests.core.writer import NT_AUXV, NT_SIGINFO, CoreWriter, Load, R, W, X
from tests.remote.stubs import free_port, stub_process

RISCV = 243
GUEST = range(0x10000, 0x50_0000_0000)
"""Addresses at which qemu-user loads 64-bit programs. Its own code lies far above or has file names."""
SIGNALS = {b"0b": 11, b"1e": 10}
"""The kernel's signal numbers by those of gdb's remote protocol."""


def core_of_crash(command: Sequence[str], path: Path) -> None:
    """Run a program until it crashes, and write its core.

    Args:
        command: The emulator, its options, the program and its arguments.
        path: Path of the core file.
    """
    port = free_port()
    emulator, *rest = command
    with (
        stub_process([emulator, "-g", str(port), *rest], port) as process,
        closing(PacketLink.connect(f"localhost:{port}")) as link,
    ):
        link.acknowledge()
        link.request(b"qSupported:multiprocess+;xmlRegisters=i386;vContSupported+")
        link.request(b"?")
        stop = _go_on(link, b"vCont;c")
        while stop[1:3] == b"1e":
            stop = _go_on(link, b"vCont;C1e")
        _write(link, process.pid, SIGNALS[stop[1:3]], path)


def _go_on(link: PacketLink, how: bytes) -> bytes:
    link.send(how)
    return link.receive(60)


def _write(link: PacketLink, pid: int, signal: int, path: Path) -> None:
    writer = CoreWriter(RISCV)
    names = list(_threads(link))
    for number, name in enumerate(names):
        assert link.request(b"Hg" + name) == b"OK"
        registers = struct.unpack("<33Q", bytes.fromhex(link.request(b"g").decode())[: 33 * 8])
        writer.thread(_tid(name), [registers[32], *registers[1:32]], 0 if number else signal)
    mappings = [m for m in parse_maps(Path(f"/proc/{pid}/maps").read_bytes()) if m.start in GUEST]
    files = [m for m in mappings if m.path.startswith("/")]
    writer.process(_tid(names[0]), Path(files[0].path).name, files[0].path)
    writer.note(NT_SIGINFO, struct.pack("<iiiiQ", signal, 0, 1, 0, 16).ljust(128, b"\0"))
    writer.note(NT_AUXV, link.request(b"qXfer:auxv:read::0,1000")[1:])
    writer.files(*((m.start, m.end, m.offset, m.path) for m in files))
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        path.write_bytes(writer.build([_load(memory.fileno(), m) for m in mappings]))


def _threads(link: PacketLink) -> Iterator[bytes]:
    """Yield the stub's ids of all threads, that of the crashed thread first."""
    reply = link.request(b"qfThreadInfo")
    while reply.startswith(b"m"):
        yield from reply[1:].split(b",")
        reply = link.request(b"qsThreadInfo")


def _tid(name: bytes) -> int:
    return int(name.split(b".")[-1], 16)


def _load(memory: int, mapping: Mapping) -> Load:
    """Return the PT_LOAD of a mapping.

    qemu-user maps guest code without PROT_EXEC, so execute permission comes from the ELF file, or from the code itself
    for the page of the signal trampoline.
    """
    data = os.pread(memory, mapping.end - mapping.start, mapping.start) if "r" in mapping.perms else b""
    if mapping.path.startswith("/"):
        loads = ElfFile.open(mapping.path).loads
        size = mapping.end - mapping.start
        code = any(
            s.executable and s.offset < mapping.offset + size and mapping.offset < s.offset + s.filesz for s in loads
        )
    else:
        code = data.startswith(RISCV64.signals.frames[0].code)
    flags = R | (W if "w" in mapping.perms else 0) | (X if code and "w" not in mapping.perms else 0)
    return Load(mapping.start, data, flags, memory=mapping.end - mapping.start)
