"""Tests of the architectures' tables: they are consistent, and calls in real code are recognized."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from pyprof.model.arch import AARCH64, ARCHES, ARM, I386, PPC64LE, RISCV64, S390, S390X, X32, X86_64, Arch, find_arch
from tests.support import build, need

ALL = sorted(ARCHES.values(), key=lambda arch: arch.name)


@pytest.mark.parametrize("arch", ALL, ids=lambda arch: arch.name)
def test_columns_of_an_architecture_agree(arch: Arch) -> None:
    columns = range(len(arch.registers))
    assert len(set(arch.registers)) == len(arch.registers)
    assert len(arch.kernel.prstatus) == len(arch.registers)
    assert set(arch.dwarf.values()) | {arch.pc} == set(columns)  # ppc64le: pc has no DWARF number
    slots = [slot for slot in arch.kernel.prstatus if slot >= 0]
    assert len(set(slots)) == len(slots)
    assert {arch.pc, arch.sp, arch.fp} <= {column for column in columns if arch.kernel.prstatus[column] >= 0}
    assert arch.fp in arch.callee_saved
    assert arch.callee_saved.isdisjoint({arch.pc, arch.sp, arch.lr})
    assert arch.word * 8 == (64 if arch is X32 else arch.elf_class)
    assert (arch.pc if arch.lr < 0 else arch.lr) in arch.dwarf.values()


@pytest.mark.parametrize("arch", ALL, ids=lambda arch: arch.name)
def test_signal_frames_save_what_an_unwinder_needs_in_distinct_words(arch: Arch) -> None:
    codes = [frame.code for frame in arch.signals.frames]
    assert len(set(codes)) == len(codes)
    for frame in arch.signals.frames:
        assert {arch.pc, arch.sp, arch.fp} | arch.callee_saved <= set(frame.saved)
        assert len(set(frame.saved.values())) == len(frame.saved)
        assert all(offset % arch.word == 0 for offset in frame.saved.values())


@pytest.mark.parametrize("arch", [arch for arch in ALL if arch.signals.frames], ids=lambda arch: arch.name)
def test_signal_trampoline_is_recognized_from_its_start_through_its_syscall(arch: Arch) -> None:
    for frame in arch.signals.frames:
        memory = bytes(64) + frame.code + bytes(64)
        known = partial(_is_known, arch, frame.code, memory)
        end = 64 + len(frame.code)
        assert next(pc for pc in range(32, 128) if known(pc, exact=False)) == 64
        assert known(64, exact=True)
        assert known(end, exact=True), "in the kernel"
        assert not known(end, exact=False)
        assert not known(end + 1, exact=True)


def _is_known(arch: Arch, code: bytes, memory: bytes, pc: int, exact: bool) -> bool:
    """Return True if the code is recognized as this trampoline or as one that begins within it."""
    found = arch.signals.trampoline_at(lambda avma, size: memory[avma : avma + size], pc, exact)
    return found is not None and found.code in code


def test_architecture_is_found_by_machine_class_and_byte_order() -> None:
    assert find_arch(62, 64, "little") is X86_64
    assert find_arch(62, 32, "little") is X32
    assert find_arch(21, 64, "little") is PPC64LE
    assert find_arch(183, 64, "little") is AARCH64
    assert find_arch(243, 64, "little") is RISCV64
    assert find_arch(243, 32, "little") is None
    big = find_arch(183, 64, "big")
    assert big is not None
    assert big.byteorder == "big"
    assert find_arch(40, 32, "little") is ARM
    assert find_arch(22, 64, "big") is S390X
    assert find_arch(22, 32, "big") is S390  # 31-bit
    assert find_arch(8, 32, "big") is None
    assert find_arch(3, 32, "little") is I386


def test_thumb_bit_and_pointer_signature_are_no_address() -> None:
    assert ARM.code_address(0x0001_0435) == 0x0001_0434
    signed = 0x0020_AAAA_0000_1234
    assert AARCH64.code_address(signed) == signed
    assert AARCH64.code_address(signed, pac=True) == 0xAAAA_0000_1234
    assert X86_64.code_address(0x7FFF_FFFF_FFFF, pac=True) == 0x7FFF_FFFF_FFFF


@pytest.mark.parametrize(
    ("arch", "code", "expected"),
    [
        (AARCH64, "000000 94", True),  # bl
        (AARCH64, "00003fd6", True),  # blr x0
        (AARCH64, "1f083fd6", True),  # blraaz x0
        (AARCH64, "01083fd7", True),  # blraa x0, x1
        (AARCH64, "00001fd6", False),  # br x0
        (AARCH64, "c0035fd6", False),  # ret
        (ARM, "000000eb", True),  # bl
        (ARM, "0000001b", True),  # blne
        (ARM, "000000fb", True),  # blx label
        (ARM, "33ff2fe1", True),  # blx r3
        (ARM, "0fe0a0e113ff2fe1", True),  # mov lr, pc; bx r3
        (ARM, "1eff2fe1", False),  # bx lr
        (ARM, "000000ea", False),  # b
        (ARM, "fff7feff", True),  # T32 bl
        (ARM, "fff7feef", True),  # T32 blx
        (ARM, "9847", True),  # T32 blx r3
        (ARM, "7047", False),  # T32 bx lr
        (S390X, "c0e500000010", True),  # brasl %r14
        (S390X, "a7e50010", True),  # bras %r14
        (S390X, "0de1", True),  # basr %r14, %r1
        (S390X, "07fe", False),  # br %r14
        (PPC64LE, "01000048", True),  # bl
        (PPC64LE, "2104804e", True),  # bctrl
        (PPC64LE, "2100804e", True),  # blrl
        (PPC64LE, "2000804e", False),  # blr
        (PPC64LE, "2004804e", False),  # bctr
        (PPC64LE, "00000048", False),  # b
        (RISCV64, "ef000000", True),  # jal ra
        (RISCV64, "ef020000", True),  # jal t0
        (RISCV64, "e7800700", True),  # jalr ra, a5
        (RISCV64, "8297", True),  # c.jalr a5
        (RISCV64, "6f000000", False),  # j
        (RISCV64, "67800000", False),  # ret
        (RISCV64, "8280", False),  # c.ret
        (RISCV64, "0290", False),  # c.ebreak
        (I386, "e800000000", True),
        (I386, "ffd0", True),
        (I386, "c3", False),
    ],
)
def test_instruction_is_recognised_as_call_or_not(arch: Arch, code: str, expected: bool) -> None:
    assert arch.calls.follows_call(bytes.fromhex(code.replace(" ", ""))) is expected


@pytest.mark.system
@pytest.mark.parametrize("mode", ["-marm", "-mthumb"])
def test_every_call_of_a_real_arm_program_is_recognised(mode: str, tmp_path: Path) -> None:
    source = tmp_path / "calls.c"
    source.write_text(
        'int puts(const char *); int f(int (*g)(int), int n) { puts("x"); return n ? f(g, n - 1) + g(n) : 1; }\n'
        "int h(int n) { return f(h, n) + 1; }\n"
    )
    program = tmp_path / "calls.so"
    flags = ["-O1", "-fPIC", "-shared", "-nostdlib"]
    build(source, program, mode, *flags, compiler="arm-linux-gnueabihf-gcc")
    listing = subprocess.run(
        [need("arm-linux-gnueabihf-objdump"), "-d", "-j", ".text", str(program)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    code = b""
    calls = 0
    for at, raw, name, operands in re.findall(r"^ *([0-9a-f]+):\t([0-9a-f ]+?) *\t([.\w]+)\t?(.*)", listing, re.M):
        code += b"".join(int(unit, 16).to_bytes(len(unit) // 2, "little") for unit in raw.split())
        if name in {"bl", "blx"}:
            calls += 1
            assert ARM.calls.follows_call(code[-8:])
            end = int(at, 16) + len(raw.replace(" ", "")) // 2
            label = re.match(r"([0-9a-f]+) <", operands)
            assert ARM.calls.call_target(code[-8:], end) == (int(label[1], 16) if label else None)
    assert calls >= 4


@pytest.mark.parametrize(
    ("arch", "code", "address", "target"),
    [
        (X86_64, "e8fbffffff", 0x1005, 0x1000),
        (X86_64, "ffd0", 0x1002, None),
        (AARCH64, "ffffff97", 0x1004, 0xFFC),
        (AARCH64, "00003fd6", 0x1004, None),
        (ARM, "fefffeeb", 0x1004 + 0x40000, 0x1000),  # bl with its offset far
        (ARM, "010000fa", 0x1004, 0x100C),  # blx: to T32
        (ARM, "fff7feff", 0x1004, 0x1000),
        (S390X, "c0e5fffffffd", 0x1006, 0xFFA),
        (S390X, "a7e50010", 0x1004, 0x1020),
        (S390X, "0de1", 0x1002, None),
        (PPC64LE, "fdffff4b", 0x1004, 0xFFC),
        (PPC64LE, "05000048", 0x1004, 0x1004),
        (PPC64LE, "2104804e", 0x1004, None),
        (RISCV64, "eff0dffd", 0x1066E + 0x10000, 0x20646),  # jal ra
        (RISCV64, "97200000e7800001", 0x1008, 0x3010),  # auipc ra, 2; jalr ra, 16(ra)
        (RISCV64, "97200000e7800701", 0x1008, None),  # auipc ra; jalr ra, 16(a5)
        (RISCV64, "8297", 0x1002, None),
    ],
)
def test_target_of_a_direct_call_is_computed(arch: Arch, code: str, address: int, target: int | None) -> None:
    assert arch.calls.call_target(bytes.fromhex(code), address) == target


@pytest.mark.parametrize(
    ("arch", "code", "expected"),
    [
        (X86_64, "ff25e22f0000", True),
        (X86_64, "f30f1efaf2ff25e22f0000", True),
        (X86_64, "6800000000e9e0ffffff", True),
        (X86_64, "554889e5", False),
        (I386, "ffa30c000000", True),
        (AARCH64, "5f2403d510000090110240f9", True),  # bti c; adrp x16; ldr x17
        (AARCH64, "fd7bbfa9", False),  # stp x29, x30
        (ARM, "00c68fe20cca8ce2", True),  # add ip, pc, #0; add ip, ip, #0xc000
        (ARM, "7847c046", True),  # bx pc; nop
        (ARM, "40f2000c", True),  # movw ip, #0
        (ARM, "2de9f04f", False),  # T32 push.w
        (S390X, "c01000000000e31010000004", True),
        (S390X, "ebcff0600024", False),  # stmg
        (PPC64LE, "180041f80000823d", True),  # std r2,24(r1); addis r12,r2
        (PPC64LE, "a602087c", False),  # mflr r0
        (RISCV64, "172e0000033e8eab67030e00", True),  # auipc t3, 2; ld t3; jalr t1, t3
        (RISCV64, "6ff0dffd", True),  # j
        (RISCV64, "01a0", True),  # c.j
        (RISCV64, "411122e006e40008", False),  # addi sp; sd s0; sd ra; addi s0, sp, 16
    ],
)
def test_plt_entry_is_code_that_jumps_on(arch: Arch, code: str, expected: bool) -> None:
    assert arch.calls.jumps(bytes.fromhex(code).ljust(16, b"\0")) is expected


@pytest.mark.parametrize(
    ("arch", "code", "saves"),
    [
        (AARCH64, "3f2303d5fd7bbda9fd030091", True),  # paciasp; stp x29, x30, [sp, #-48]!
        (AARCH64, "fd7bbda9fd030091", True),
        (AARCH64, "ffc300d1fd7b02a9", True),  # sub sp, sp, #48; stp x29, x30, [sp, #32]
        (AARCH64, "fd030091e0030191", True),  # mov x29, sp: the record is made, but not yet linked
        (AARCH64, "e00313aafd030091", False),
        (AARCH64, "c0035fd6fd7bbda9", False),  # ret; the next function
        (AARCH64, "20000014fd7bbda9", False),  # b
        (AARCH64, "", False),
        (S390X, "eb6ff0300024b90400ef", True),  # stmg %r6,%r15,48(%r15)
        (S390X, "a72b0001ebbff0580024", True),
        (S390X, "eb68f0300024", False),  # not r14
        (S390X, "07feebbff0580024", False),  # br %r14
        (PPC64LE, "a602087c100001f8d1ff21f8", True),  # mflr r0; std r0,16(r1); stdu r1,-48(r1)
        (PPC64LE, "2000804ed1ff21f8", False),  # blr
        (RISCV64, "411122e006e40008", True),  # addi sp; sd s0; sd ra; addi s0, sp, 16
        (RISCV64, "130101ff2330110023341100", True),  # the same without compressed instructions
        (RISCV64, "06e40008", True),
        (RISCV64, "0008", True),  # the record is made, but not yet linked
        (RISCV64, "0505ef0000000008", False),  # addi; jal
        (RISCV64, "828006e4", False),  # ret; the next function
        (X86_64, "554889e5", False),
    ],
)
def test_code_that_still_has_its_return_address_in_the_link_register(arch: Arch, code: str, saves: bool) -> None:
    assert arch.calls.saves_lr(bytes.fromhex(code)) is saves


@pytest.mark.parametrize(
    ("code", "size"), [("8b1c24c3", 4), ("8b0c24c35589e5", 4), ("8b1c24", 0), ("5589e553", 0), ("", 0)]
)
def test_thunk_that_asks_for_pc_is_four_bytes_long(code: str, size: int) -> None:
    assert I386.calls.leaf_size(bytes.fromhex(code)) == size


@pytest.mark.parametrize(
    ("code", "sets"),
    [
        ("397122f826f48000", True),  # addi sp; sd s0; sd s1; addi s0, sp, 64
        ("397122f826f4800006fc", True),  # and sd ra
        ("397122f826f4", False),  # s0 is not set yet
        ("8000ef001000", False),  # a call since then
        ("", False),
    ],
)
def test_code_that_just_pointed_the_base_register_to_its_own_record(code: str, sets: bool) -> None:
    assert RISCV64.calls.sets_base(bytes.fromhex(code)) is sets


@pytest.mark.parametrize(
    ("arch", "code", "svma", "target"),
    [
        (X86_64, "ff25e22f0000", 0x1020, ("slot", 0x4008)),
        (X86_64, "f30f1efaf2ff25dd2f0000", 0x1020, ("slot", 0x4008)),
        (X86_64, "6805000000e9e0ffffff", 0x1030, ("number", 5)),
        (X86_64, "ff35e22f0000", 0x1000, None),  # push
        (RISCV64, "172e0000033e8eab67030e0013000000", 0x560, ("slot", 0x2018)),
        (RISCV64, "972300003303c341", 0x540, None),  # auipc t2: the resolver's entry
    ],
)
def test_plt_entry_names_its_slot(arch: Arch, code: str, svma: int, target: tuple[str, int] | None) -> None:
    assert arch.calls.plt is not None
    assert arch.calls.plt.target(bytes.fromhex(code), svma) == target
