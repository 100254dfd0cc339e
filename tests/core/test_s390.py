"""A test of a core of 31-bit s390, for which Debian has no emulator.

The emulator unicorn runs the code, and the test writes the core.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pyprof.objfile.elf_file import ElfFile
from tests.core.judges import gdb_pcs
from tests.core.making import Core
from tests.core.support import dump_with, names, pcs
from tests.core.writer import NT_SIGINFO, CoreWriter, Load, R, W
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.matrix, pytest.mark.system]

STACK, STACK_SIZE = 0x7FF0_0000, 1 << 16
FLAGS = ("-m31", "-O2", "-g", "-static", "-nostdlib", "-no-pie", "-fno-stack-protector", "-fasynchronous-unwind-tables")
AMODE = 0x8000_0000
"""The bit for 31-bit addresses in the program status word and in return addresses."""


def core_of(program: Path, path: Path) -> Core:
    unicorn = pytest.importorskip("unicorn")
    const = pytest.importorskip("unicorn.s390x_const")
    elf = ElfFile.open(str(program))
    machine = unicorn.Uc(unicorn.UC_ARCH_S390X, unicorn.UC_MODE_BIG_ENDIAN)
    machine.mem_map(STACK, STACK_SIZE)
    mapped = set()
    for load in elf.loads:
        for page in range(load.vaddr & -4096, load.vaddr + load.memsz, 4096):
            if page not in mapped:
                machine.mem_map(page, 4096)
                mapped.add(page)
        machine.mem_write(load.vaddr, bytes(elf.source.read(load.offset, load.filesz)))
    machine.reg_write(const.UC_S390X_REG_PSWM, AMODE)
    machine.reg_write(const.UC_S390X_REG_R15, STACK + STACK_SIZE - 256)
    with pytest.raises(unicorn.UcError):
        machine.emu_start(elf.entry, 0, count=10_000)
    general = [machine.reg_read(getattr(const, f"UC_S390X_REG_R{n}")) & 0xFFFF_FFFF for n in range(16)]
    pc = machine.reg_read(const.UC_S390X_REG_PC) & 0x7FFF_FFFF
    padding = [0, 0]  # aligns the register set and the note to 8 bytes
    registers = [0x0705_0000, pc | AMODE, *general, *([0] * 16), general[2], *padding]
    loads = []
    for page in sorted(mapped):
        flags = next(s.flags for s in elf.loads if s.vaddr & -4096 <= page < s.vaddr + s.memsz)
        loads.append(Load(page, bytes(machine.mem_read(page, 4096)), flags, promised=None if flags & (W | R) else 0))
    loads.append(Load(STACK, bytes(machine.mem_read(STACK, STACK_SIZE)), R | W))
    writer = CoreWriter(22, 32, ">")
    writer.thread(77, registers, signal=11)
    writer.process(77, "bare", "./bare")
    writer.note(NT_SIGINFO, struct.pack(">iiiI", 11, 0, 1, 0).ljust(128, b"\0"))
    writer.auxv((3, (elf.loads[0].vaddr & -4096) + 0x34), (4, 32), (5, 6), (9, elf.entry))
    rows = [(s.vaddr & -4096, (s.vaddr & -4096) + 4096, s.offset & -4096, str(program)) for s in elf.loads if s.filesz]
    writer.files(*rows)
    path.write_bytes(writer.build(loads))
    return Core(path, program, "")


@pytest.mark.parametrize("more", [(), ("-mbackchain", "-fno-asynchronous-unwind-tables")], ids=["tables", "chain"])
def test_31_bit_core_has_the_stack_that_the_program_made_and_gdb_agrees(more: tuple[str, ...], tmp_path: Path) -> None:
    program = build(PROGRAMS / "core_bare.c", tmp_path / "bare", *FLAGS, *more, compiler="s390x-linux-gnu-gcc")
    core = core_of(program, tmp_path / "core")
    document = dump_with(core)
    assert (document["arch"], document["pid"]) == ("s390", 77)
    (thread,) = document["threads"]
    assert names(thread) == ["crash_4", "crash_3", "crash_2", "crash_1", "_start"]
    if not more:
        assert [frame["trust"] for frame in thread["frames"][1:]] == ["eh_frame"] * 4
    theirs = gdb_pcs(core, tmp_path)[77]
    assert pcs(document)[77][: len(theirs)] == theirs
    assert len(theirs) >= 4
