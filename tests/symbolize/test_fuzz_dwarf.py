"""Fuzz tests of DWARF and symbol tables: only FormatError inside, no exception outside, in bounded time and memory."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.objfile.elf_file import ElfFile
from pyprof.symbolize.dwarf_attribute_forms import Deadline, OutOfTime
from pyprof.symbolize.dwarf_source_lines import SourceLines
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.symbol_table import SymbolTable
from tests.objfile.live import where
from tests.support import build

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

SECTIONS = ["info", "abbrev", "line", "rnglists", "ranges", "aranges", "str_offsets", "addr", "line_str"]
DWARF = [f".debug_{name}" for name in SECTIONS]
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("fuzz")
    return [
        where(folder, "v5", "-g", "-gdwarf-5", "-rdynamic").read_bytes(),
        where(folder, "v4", "-g", "-gdwarf-4", "-O2").read_bytes(),
        where(folder, "clang", "-g", "-gdwarf-5", "-O2", compiler="clang").read_bytes(),
        build(PROGRAMS / "gaps.S", folder / "gaps", "-shared", "-nostdlib").read_bytes(),
    ]


def broken(data: bytes, section: str, changes: list[tuple[int, int]]) -> ElfFile:
    elf = ElfFile.from_bytes(data, "original")
    mutated = bytearray(data)
    header = elf.sections.get(section)
    if header is not None and header.size:
        for place, value in changes:
            mutated[header.offset + place % header.size] = value
    return ElfFile.from_bytes(bytes(mutated), "fuzz")


changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=400, deadline=None)
@given(
    which=st.integers(0, 2),
    section=st.sampled_from(DWARF),
    changes=changes,
)
def test_broken_dwarf_costs_only_its_lines(
    originals: list[bytes], which: int, section: str, changes: list[tuple[int, int]]
) -> None:
    elf = broken(originals[which], section, changes)
    source = SourceLines(elf)
    text = elf.sections[".text"]
    with suppress(OutOfTime):
        for svma in range(text.addr, text.addr + text.size, 16):
            for place in source.find(svma, Deadline(5.0)):
                assert place.file is None or place.file
    assert all(isinstance(error, FormatError) for error in source.broken)


@settings(max_examples=400, deadline=None)
@given(
    which=st.integers(0, 3),
    section=st.sampled_from([".symtab", ".strtab", ".dynsym", ".dynstr", ".rela.plt", ".rela.dyn", ".plt", ".plt.got"]),
    changes=changes,
)
def test_broken_symbol_tables_still_give_a_table(
    originals: list[bytes], which: int, section: str, changes: list[tuple[int, int]]
) -> None:
    elf = broken(originals[which], section, changes)
    sources = read_symbol_sources(elf, lambda: None)
    table = SymbolTable(sources.rows)
    svmas = np.random.default_rng(1).integers(0, 1 << 16, 200).astype(np.uint64)
    for svma, row in zip(svmas.tolist(), table.find(svmas).tolist(), strict=True):
        assert row == -1 or int(table.start[row]) <= svma < int(table.end[row])
        if row >= 0:
            assert isinstance(table.name(row), str)
    assert all(isinstance(error, FormatError) for error in sources.broken)


ENDLESS = """
    .text
    .globl _start
_start: ret
    .section .debug_abbrev
    .byte 1, 0x11, 0, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0, 0
    .section .debug_info
    .long 2f - 1f
1:  .short 4
    .long 0
    .byte 8, 1
    .long 0
    .quad _start, 16
2:  .section .debug_line
    .long 4f - 3f
3:  .short 4
    .long 6f - 5f
5:  .byte 1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0
6:  .fill 30000000, 1, 8
4:
"""


def test_line_program_without_lines_ends_in_time(tmp_path: Path) -> None:
    """Run a line program of 30 million instructions, none of which emits a row."""
    source = tmp_path / "endless.S"
    source.write_text(ENDLESS)
    elf = ElfFile.open(str(build(source, tmp_path / "endless", "-nostdlib", "-static")))
    lines = SourceLines(elf)
    with pytest.raises(OutOfTime):
        lines.find(elf.entry, Deadline(0.05))
    assert lines.broken == []


def test_plt_at_the_end_of_the_address_space_breaks_nothing(tmp_path: Path) -> None:
    """Move lazy PLT entries, which only push their index, to the end of the address space."""
    path = where(tmp_path, "lazy", "-fcf-protection", "-Wl,-z,lazy", "-Wl,-z,ibtplt")
    data = bytearray(path.read_bytes())
    elf = ElfFile.from_bytes(bytes(data), "original")
    (shoff,) = struct.unpack_from("<Q", data, 40)
    struct.pack_into("<Q", data, shoff + 64 * elf.sections[".plt"].index + 16, (1 << 64) - 24)
    sources = read_symbol_sources(ElfFile.from_bytes(bytes(data), "fuzz"), lambda: None)
    assert "plt" in sources.names
    assert len(SymbolTable(sources.rows))
