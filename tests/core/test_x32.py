"""A test of a core of x32, which most kernels cannot run: an emulator runs the code, and the test writes the core."""

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

STACK, STACK_SIZE = 0xFFF0_0000, 1 << 16
FLAGS = ("-O2", "-g", "-static", "-nostdlib", "-no-pie", "-fno-stack-protector")
# user_regs_struct of x86_64
ORDER = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi - rip cs eflags rsp ss fs_base gs_base - - - -"


def core_of(program: Path, path: Path) -> Core:
    unicorn = pytest.importorskip("unicorn")
    const = pytest.importorskip("unicorn.x86_const")
    elf = ElfFile.open(str(program))
    machine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    machine.mem_map(STACK, STACK_SIZE)
    loads = []
    for load in elf.loads:
        page = load.vaddr & -4096
        machine.mem_map(page, 4096)
        machine.mem_write(load.vaddr, bytes(elf.source.read(load.offset, load.filesz)))
    machine.reg_write(const.UC_X86_REG_RSP, STACK + STACK_SIZE - 256)
    with pytest.raises(unicorn.UcError):
        machine.emu_start(elf.entry, 0, count=10_000)
    registers = [
        0 if name == "-" else machine.reg_read(getattr(const, f"UC_X86_REG_{name.upper()}")) for name in ORDER.split()
    ]
    for load in elf.loads:
        page, flags = load.vaddr & -4096, load.flags
        loads.append(Load(page, bytes(machine.mem_read(page, 4096)), flags, promised=None if flags & (W | R) else 0))
    loads.append(Load(STACK, bytes(machine.mem_read(STACK, STACK_SIZE)), R | W))
    writer = CoreWriter(62, 32, "<", wide_registers=True)
    writer.thread(77, registers, signal=11)
    writer.process(77, "bare", "./bare")
    writer.note(NT_SIGINFO, struct.pack("<iiiI", 11, 0, 1, 0).ljust(128, b"\0"))
    writer.auxv((3, 0x400034), (4, 32), (5, 6), (9, elf.entry))
    rows = [(s.vaddr & -4096, (s.vaddr & -4096) + 4096, s.offset & -4096, str(program)) for s in elf.loads if s.filesz]
    writer.files(*rows)
    path.write_bytes(writer.build(loads))
    return Core(path, program, "")


def test_x32_core_has_the_stack_that_the_program_made_and_gdb_agrees(tmp_path: Path) -> None:
    program = build(PROGRAMS / "core_bare.c", tmp_path / "bare", *FLAGS, compiler="x86_64-linux-gnux32-gcc")
    core = core_of(program, tmp_path / "core")
    document = dump_with(core)
    assert (document["arch"], document["pid"]) == ("x32", 77)
    assert document["signal"] == {"number": 11, "name": "SIGSEGV", "code": "SEGV_MAPERR", "address": "0x0"}
    (thread,) = document["threads"]
    assert names(thread) == ["crash_4", "crash_3", "crash_2", "crash_1", "_start"]
    assert [frame["trust"] for frame in thread["frames"][1:]] == ["eh_frame"] * 4
    theirs = gdb_pcs(core, tmp_path)[77]
    assert pcs(document)[77][: len(theirs)] == theirs
    assert len(theirs) >= 5
