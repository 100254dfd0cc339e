"""Minidumps and microdumps written from core files of crashed programs, so that both can be compared.

They contain what a crash reporter collects: registers, stacks, the list of modules with build IDs, and /proc files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pyprof.cli.main import run
from pyprof.collectors.postmortem.core_process import CoreFileProcess
from pyprof.model.address_space import Module
from pyprof.objfile.breakpad_records import breakpad_id
from pyprof.objfile.core_file import CoreMemory
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from tests.core.making import Core, folder
from tests.minidump.writer import Microdump, MinidumpWriter, context, elf_record, pdb70

PROCESSORS = {"x86_64": "amd64", "i386": "x86", "aarch64": "arm64", "arm": "arm"}
LINUX_STATUS, LINUX_AUXV, LINUX_MAPS = 0x47670004, 0x47670008, 0x47670009
MAX_OTHER = 16 << 20


class CoreParts:
    """The contents of a core file under the names that dumps use."""

    def __init__(self, core: Core) -> None:
        exe = str(core.program) if core.sysroot else ""
        self.core = core
        self.process = CoreFileProcess(str(core.path), exe, core.sysroot, 1 << 20, Diagnostics())
        self.memory = CoreMemory(ElfFile.open(str(core.path)))
        self.processor = PROCESSORS[self.process.arch.name]

    def threads(self) -> Iterator[tuple[int, dict[str, int], int, bytes]]:
        """Yield (tid, registers, start of the stack, its bytes) of each thread."""
        arch = self.process.arch
        for thread in self.process.saved.saved:
            values = [int(value) for value in thread.row]
            registers = dict(zip(arch.registers, values, strict=True))
            sp = values[arch.sp]
            region = self.memory.region_at(sp)
            start = max(sp - 128, region.start) if region else sp
            yield thread.tid, registers, start, self.memory.read(start, 1 << 20)

    def modules(self) -> list[Module]:
        return [module for module in self.process.space.modules if module.has_file]

    def file(self, module: Module) -> Path:
        """Return the path of the module's file on this machine."""
        if module.path.endswith(self.core.program.name):
            return self.core.program
        return Path(self.core.sysroot + module.path)

    def vdso(self) -> tuple[int, Path] | None:
        """Return the address of the vDSO and a copy of it as a file, if the core contains it."""
        mapping = next((m for m in self.process.space.mappings if m.path == "[vdso]"), None)
        if mapping is None:
            return None
        path = folder() / self.process.arch.name / "linux-gate.so"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self.memory.read(mapping.start, mapping.end - mapping.start))
        return mapping.start, path


@cache
def parts(core: Core) -> CoreParts:
    return CoreParts(core)


def minidump(core: Core, *, paths: str = "", streams: bool = True, wide_memory: bool = False) -> Path:
    """Write a minidump of a core.

    Args:
        core: The core.
        paths: Prefix of each module's path, with which no file is found.
        streams: Whether to write the streams of Linux, too.
        wide_memory: Whether to write a 64-bit memory list.
    """
    found = parts(core)
    writer = MinidumpWriter(found.processor, "linux", wide_memory=wide_memory)
    stacks = set()
    rows = list(found.threads())
    for tid, registers, start, stack in rows:
        writer.thread(tid, registers, start, stack)
        region = found.memory.region_at(start)
        stacks.add(region.start if region else 0)
    for region in found.memory.regions:  # other stacks, and the vDSO with the signal trampoline
        size = region.stored_end - region.start
        if region.perms[1:3] != "--" and size <= MAX_OTHER and region.start not in stacks:
            mapping = found.process.space.mapping_at(region.start)
            if mapping is None or not mapping.path:
                writer.memory.append((region.start, found.memory.read(region.start, size)))
    for module in found.modules():
        elf = ElfFile.open(str(found.file(module)))
        writer.module(module.start, module.end - module.start, paths + module.path, elf_record(elf.build_id))
    vdso = found.vdso()
    if vdso is not None:
        content = vdso[1].read_bytes()
        writer.module(vdso[0], len(content), "linux-gate.so", elf_record(ElfFile.open(str(vdso[1])).build_id))
        if not paths:
            writer.memory.append((vdso[0], content))
    crashed = found.process.crashed
    if crashed:
        number, code, address = crashed
        tid, registers, start, stack = rows[0]
        writer.exception(tid, number, code, address or 0, registers)
        in_the_handler = dict.fromkeys(registers, 0)  # registers in the crash handler, not at the crash
        writer.threads[0] = (tid, context(found.processor, in_the_handler), start, stack)
    if streams:
        writer.streams[LINUX_STATUS] = f"Name:\tx\nPid:\t{found.process.pid}\n".encode()
        form = "<QQ" if found.processor in ("amd64", "arm64") else "<II"
        pairs = found.process._notes.auxv.items()
        writer.streams[LINUX_AUXV] = b"".join(struct.pack(form, kind, value) for kind, value in pairs)
        writer.streams[LINUX_MAPS] = "".join(
            f"{m.start:x}-{m.end:x} {m.perms} {m.offset:08x} 00:00 {m.inode} {m.path}\n"
            for m in found.process.space.mappings
        ).encode()
    path = core.path.with_name(f"{core.path.name}-{paths.strip('/')}{streams}{wide_memory}.dmp")
    path.write_bytes(writer.build())
    return path


def as_windows(core: Core) -> tuple[Path, Path]:
    """Write the crash as a Windows dump of modules with PDBs. Return the dump and a symbol store."""
    found = parts(core)
    writer = MinidumpWriter(found.processor, "windows")
    store = folder() / f"pdbs-{core.program.name}"
    rows = list(found.threads())
    for tid, registers, start, stack in rows:
        writer.thread(tid, registers, start, stack)
    for number, module in enumerate(found.modules()):
        elf = ElfFile.open(str(found.file(module)))
        name = module.name.partition(".")[0]
        guid = bytes.fromhex(elf.build_id)[:16]
        writer.module(
            module.start, module.end - module.start, f"C:\\app\\{name}.dll", pdb70(guid, 2 + number, f"{name}.pdb")
        )
        written = next((symbols(core) / found.file(module).resolve().name).glob("*/*.sym"))
        lines = written.read_text().splitlines()
        identifier = breakpad_id(elf)[:-1] + f"{2 + number:X}"
        lines[0] = f"MODULE windows {lines[0].split()[2]} {identifier} {name}.pdb"
        lines[1] = "INFO CODE_ID 45D35F6C2d000 " + f"{name}.dll"
        place = store / f"{name}.pdb" / identifier
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.sym").write_text("\r\n".join(lines) + "\r\n")
    writer.exception(rows[0][0], 0xC0000005, 0, rows[0][1].get("rip", 0), rows[0][1], 1, 0)
    path = core.path.with_name(f"{core.path.name}-windows.dmp")
    path.write_bytes(writer.build())
    return path, store


def microdump(core: Core) -> str:
    """Return a microdump of the crashed thread."""
    found = parts(core)
    _, registers, start, stack = next(found.threads())
    modules = [
        (m.start, m.end - m.start, breakpad_id(ElfFile.open(str(found.file(m)))), m.name) for m in found.modules()
    ]
    return Microdump(found.processor, registers, start, stack[: 64 << 10], modules).text()


@cache
def symbols(core: Core) -> Path:
    """Return a symbol store of all files of a core, written by pyprof symbols."""
    store = folder() / f"symbols-{core.program.name}"
    vdso = parts(core).vdso()
    files = [parts(core).file(module) for module in parts(core).modules()]
    for file in [*files, *([vdso[1]] if vdso else [])]:
        assert run(["symbols", str(file), "--store", str(store), "-q"]) == 0
    return store
