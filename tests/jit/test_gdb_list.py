"""Tests of the list of the GDB JIT interface, valid and hostile."""

from __future__ import annotations

import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import ARM, I386, X86_64, Arch
from pyprof.model.jit_code_map import ALWAYS
from pyprof.objfile.elf_memory_image import relocate_memory_object
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.gdb_jit_and_libunwind_code import GdbCode, code_ranges
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.unwind.formats.gdb_jit import DESCRIPTOR, MAX_ENTRIES, JitEntry, read_list, read_object
from tests.jit.memory import Memory
from tests.support import need

pytestmark = pytest.mark.system

D = 0x1000
PROGRAMS = Path(__file__).parent / "programs"


def listed(*entries: tuple[int, ...], first: int, version: int = 1) -> Memory:
    """Return memory with a list of entries (address, next, prev, symfile address, symfile size)."""
    memory = Memory()
    memory.put(D, struct.pack("<IIQQ", version, 1, first, first))
    for avma, *words in entries:
        memory.words(avma, *words)
    return memory


def test_entries_come_in_the_order_of_the_list() -> None:
    memory = listed((0x2000, 0x3000, 0, 0x10000, 5), (0x3000, 0, 0x2000, 0x20000, 6), first=0x2000)
    memory.put(0x10000, b"12345")
    found = read_list(memory.read, X86_64, D)
    assert found.entries == (JitEntry(0x2000, 0x10000, 5), JitEntry(0x3000, 0x20000, 6))
    assert (found.whole, found.relevant) == (True, 0x2000)
    assert read_object(memory.read, X86_64, found.entries[0]) == b"12345"


@pytest.mark.parametrize(("arch", "padding"), [(I386, ""), (ARM, "4x")])
def test_size_of_32_bit_targets_is_aligned_as_their_abi_says(arch: Arch, padding: str) -> None:
    memory = Memory()
    memory.put(D, struct.pack("<IIII", 1, 0, 0, 0x2000))
    memory.put(0x2000, struct.pack(f"<III{padding}Q", 0, 0, 0x9000, 77))
    assert read_list(memory.read, arch, D).entries == (JitEntry(0x2000, 0x9000, 77),)


def test_cycle_and_pointer_to_nowhere_end_the_list() -> None:
    cycle = listed((0x2000, 0x3000, 0, 1, 2), (0x3000, 0x2000, 0, 3, 4), first=0x2000)
    found = read_list(cycle.read, X86_64, D)
    assert (len(found.entries), found.whole) == (2, False)
    nowhere = listed((0x2000, 0xDEAD0000, 0, 1, 2), first=0x2000)
    assert read_list(nowhere.read, X86_64, D).whole is False
    top = listed(first=2**64 - 4)
    assert read_list(top.read, X86_64, D).entries == ()


def test_endless_list_is_read_in_bounds() -> None:
    memory = Memory()
    memory.put(D, struct.pack("<IIQQ", 1, 0, 0, 0x2000))

    def read(avma: int, size: int) -> bytes:
        memory.reads += 1
        return memory.read(avma, size) if avma < 0x2000 else struct.pack("<QQQQ", avma + 32, 0, 1, 1)[:size]

    found = read_list(read, X86_64, D)
    assert (len(found.entries), found.whole) == (MAX_ENTRIES, False)
    assert memory.reads < 3 * MAX_ENTRIES


def test_list_that_changes_whenever_it_is_read_is_read_a_few_times() -> None:
    memory, diagnostics = listed((0x2000, 0, 0, 1, 2), first=0x2000), Diagnostics()

    def read(avma: int, size: int) -> bytes:
        struct.pack_into("<I", memory.pieces[D], 4, memory.reads)
        return memory.read(avma, size)

    scan = CodeScan(AddressSpace(1, 1, 0, (), read, ""), X86_64, ALWAYS, 100, ((DESCRIPTOR, D),))
    GdbCode((), diagnostics).update(scan)
    assert diagnostics.counts["gdb_jit_list_changed"] == 1


def test_unknown_version_and_monstrous_sizes_are_refused() -> None:
    with pytest.raises(FormatError, match="unknown version 7"):
        read_list(listed(first=0, version=7).read, X86_64, D)
    for size in (0, 1 << 60):
        with pytest.raises(FormatError, match="object file of"):
            read_object(Memory().read, X86_64, JitEntry(0x2000, 0x3000, size))


@given(st.binary(min_size=24, max_size=400))
def test_any_memory_is_read_without_another_exception(data: bytes) -> None:
    memory = Memory()
    memory.put(0, b"\x01\0\0\0" + data[4:])
    found = read_list(memory.read, X86_64, 0)
    for entry in found.entries:
        if entry.size < 1000:
            with suppress(FormatError):
                relocate_memory_object(read_object(memory.read, X86_64, entry), "x")


@pytest.fixture(scope="module")
def relocatable(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    output = tmp_path_factory.mktemp("object") / "odd.o"
    subprocess.run([need("gcc"), "-c", "-o", output, PROGRAMS / "made_odd.S"], check=True, timeout=60)
    data = bytearray(output.read_bytes())
    shoff = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, shoff + 64 + 16, 0x7F0000001000)  # sh_addr of section 1, .text
    return bytes(data)


def test_relocatable_object_becomes_one_with_addresses(relocatable: bytes) -> None:
    elf = relocate_memory_object(relocatable, "[jit] gdb")
    ((start, end),) = code_ranges(elf)
    assert start == 0x7F0000001000
    table = SymbolTable(read_symbol_sources(elf, lambda: None).rows)
    assert [(table.name(row), int(table.start[row])) for row in range(len(table))] == [("made_odd", start)]
    frames = elf.section(".debug_frame")
    assert frames is not None
    assert struct.pack("<QQ", start, end - start) in bytes(frames)


@given(st.data())
def test_object_with_broken_bytes_is_refused_or_read(relocatable: bytes, data: st.DataObject) -> None:
    broken = bytearray(relocatable)
    for _ in range(data.draw(st.integers(1, 8))):
        broken[data.draw(st.integers(16, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        code_ranges(relocate_memory_object(bytes(broken), "x"))
