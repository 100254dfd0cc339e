"""Tests of CFI rows against readelf and llvm-dwarfdump, on unusual programs and on the files of this process.

readelf prints no expressions. llvm-dwarfdump prints everything except for functions that restore a state (see
cfi_oracles).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from elftools.elf.sections import SymbolTableSection

from pyprof.model.arch import X86_64
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import open_eh_frame
from tests.support import PROGRAMS, build
from tests.unwind.cfi_assembler import algebra
from tests.unwind.cfi_oracles import differences, llvm_rows, our_rows, readelf_rows

pytestmark = [pytest.mark.matrix, pytest.mark.system]

NO_EH_FRAME = ("-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
BARE = ("-nostdlib", "-nostartfiles", "-fPIE", "-static-pie")


def agree(path: Path, section: str = ".eh_frame") -> int:
    """Assert that all rows are equal, and return the number of rows that readelf has."""
    theirs = llvm_rows(str(path), section)
    ours = {offset: f for offset, f in our_rows(str(path), section).items() if offset in theirs}
    assert list(differences(ours, theirs)) == []
    theirs = readelf_rows(str(path), section)
    assert list(differences(our_rows(str(path), section, "readelf"), theirs)) == []
    return sum(len(rows) for _, _, rows in theirs.values())


@pytest.mark.parametrize(
    "flags",
    [
        ("-O2", "-mavx", *BARE),
        ("-O2", "-mavx", "-fno-omit-frame-pointer", *BARE),
        ("-O0", "-mavx", *BARE),
        ("-Os", "-mavx", "-fcf-protection=full", *BARE),
        ("-O2", "-mavx", "-m32", "-nostdlib", "-nostartfiles", "-static", "-Wl,-m,elf_i386"),
        ("-O2", "-mavx", "-Wl,--no-eh-frame-hdr", *BARE),
    ],
    ids=" ".join,
)
def test_eh_frame_of_unusual_frames(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert agree(build(PROGRAMS / "cfi_frames.c", tmp_path / "program", *flags)) > 15


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-gz=zlib", "-Wl,--compress-debug-sections=zlib"),
        ("-gz=zlib-gnu", "-Wl,--compress-debug-sections=zlib-gnu"),
        ("-gdwarf64", "-gdwarf-5"),
        ("-gdwarf-2", "-gstrict-dwarf"),
        ("-ffunction-sections", "-Wl,--gc-sections"),
    ],
    ids=lambda flags: " ".join(flags) or "plain",
)
def test_debug_frame_of_unusual_frames(tmp_path: Path, flags: tuple[str, ...]) -> None:
    program = build(PROGRAMS / "cfi_frames.c", tmp_path / "program", "-O2", "-mavx", *NO_EH_FRAME, *flags, *BARE)
    assert ElfFile.open(str(program)).section(".eh_frame") is None
    assert agree(program, ".debug_frame") > 15


def test_exceptions_of_cpp(tmp_path: Path) -> None:
    flags = ("-O2", "-fno-omit-frame-pointer", "-pthread", "-I", str(PROGRAMS))
    assert agree(build(PROGRAMS / "ladder_throw.cc", tmp_path / "program", *flags, compiler="g++")) > 30


def test_static_program(tmp_path: Path) -> None:
    assert agree(build(PROGRAMS / "ladder_throw.cc", tmp_path / "program", "-O2", "-static", compiler="g++")) > 10_000


def test_files_of_this_process() -> None:
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in lines if "r-xp" in line and "/" in line}
    files = {f for f in mapped if Path(f).name.startswith(("libc.", "libc-", "ld-", "libpython", "libstdc++"))}
    files.add(str(Path(sys.executable).resolve()))
    assert len(files) >= 3
    for path in sorted(files):
        assert agree(Path(path)) > 0, path


# ---- directives: every row with its expected text

DIRECTIVES = {
    "_start": ["+0x0 cfa = sp + 8; ra = undefined"],
    "plain": [
        "+0x0 cfa = sp + 8; ra = [cfa - 8]",
        "+0x1 cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]",
        "+0x4 cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]",
        "+0x5 cfa = fp + 16; rbx = [cfa - 24]; fp = [cfa - 16]; ra = [cfa - 8]",
        "+0x6 cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]",
        "+0x7 cfa = sp + 8; ra = [cfa - 8]",
        "+0x8 cfa = fp + 16; rbx = [cfa - 24]; fp = [cfa - 16]; ra = [cfa - 8]",
        "+0xc cfa = fp + 80; rbx = [cfa - 24]; fp = [cfa - 16]; ra = [cfa - 8]",
    ],
    "expressions": [
        "+0x0 cfa = sp + 8; ra = [cfa - 8]",
        "+0x1 cfa = [fp - 8]; ra = [cfa - 8]",
        "+0x2 cfa = [fp - 8]; fp = [fp]; ra = [cfa - 8]",
        "+0x3 cfa = [fp - 8]; rbx = [expr(breg6 -16; deref)]; fp = [fp]; ra = [cfa - 8]",
        "+0x4 cfa = [fp - 8]; rbx = [expr(breg6 -16; deref)]; fp = [fp]; r12 = [fp - 24]; ra = [cfa - 8]",
        "+0x5 cfa = [fp - 8]; rbx = [expr(breg6 -16; deref)]; fp = [fp]; r12 = [fp - 24];"
        " r13 = expr(breg7 8; plus_uconst 16); ra = [cfa - 8]",
        "+0x6 cfa = expr(breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus); rbx = [expr(breg6 -16; deref)];"
        " fp = [fp]; r12 = [fp - 24]; r13 = expr(breg7 8; plus_uconst 16); ra = [cfa - 8]",
        "+0x7 cfa = sp + 8; rbx = [expr(breg6 -16; deref)];"
        " fp = [fp]; r12 = [fp - 24]; r13 = expr(breg7 8; plus_uconst 16); ra = [cfa - 8]",
    ],
    "advances": [
        "+0x0 cfa = sp + 8; ra = [cfa - 8]",
        "+0x3f cfa = sp + 16; ra = [cfa - 8]",
        "+0x7f cfa = sp + 24; ra = [cfa - 8]",
        "+0x17f cfa = sp + 32; ra = [cfa - 8]",
        "+0x1017f cfa = sp + 40; ra = [cfa - 8]",
    ],
    "simple": ["+0x0 cfa = sp + 16; ra = [cfa - 16]"],
    "trampoline": ["+0x0 cfa = sp + 160; ra = [cfa - 8]; signal"],
    # A return address column without a rule means the register itself, as in gdb and libgcc.
    "other_column": [
        "+0x0 cfa = sp + 8; ra = rcx",
        "+0x1 cfa = sp + 8; rcx = [cfa - 24]; ra = [cfa - 24]",
    ],
    "with_personality": [
        "+0x0 cfa = sp + 8; ra = [cfa - 8]",
        "+0x1 cfa = sp + 16; rbx = [cfa - 16]; ra = [cfa - 8]",
    ],
}
RARE_LAST = (
    "+0xf cfa = sp + 40; rbx = [cfa + 16]; fp = [cfa + 16]; sp = cfa; r9 = cfa + 24; r12 = r12; r13 = undefined;"
    " r14 = r15; r15 = cfa - 32; ra = rcx"
)


def symbols(elf: ElfFile) -> dict[str, int]:
    from elftools.elf.elffile import ELFFile

    with open(elf.name, "rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        return {symbol.name: symbol["st_value"] for symbol in table.iter_symbols()}


def test_every_directive_of_the_assembler(tmp_path: Path) -> None:
    elf = ElfFile.open(str(build(PROGRAMS / "cfi_directives.S", tmp_path / "program", "-nostdlib", "-static")))
    source = open_eh_frame(elf, X86_64, Diagnostics())
    assert source is not None
    rows = {}
    for name, start in symbols(elf).items():
        if name in DIRECTIVES or name == "rare":
            function = source.function_at(start)
            assert function is not None
            rows[name] = algebra(function)
    rare = rows.pop("rare")
    assert rows == DIRECTIVES
    assert (len(rare), rare[-1]) == (14, RARE_LAST)


@pytest.mark.parametrize("section", [".eh_frame", ".debug_frame"])
def test_directives_against_the_tools(tmp_path: Path, section: str) -> None:
    program = build(PROGRAMS / "cfi_directives.S", tmp_path / "program", "-nostdlib", "-static", "-DFOR_LLVM")
    path = str(program)
    known = {
        symbols(ElfFile.open(path))["other_column"]: "readelf and LLVM leave a column without a rule undefined",
        symbols(ElfFile.open(path))["expressions"]: "readelf says vexp where the rule is [reg + n]",
    }
    for ours, theirs in (
        (our_rows(path, section), llvm_rows(path, section)),
        (our_rows(path, section, "readelf"), readelf_rows(path, section)),
    ):
        ours = {offset: f for offset, f in ours.items() if offset in theirs}
        assert len(ours) >= 8
        unexplained = {offset for offset in ours if ours[offset][0] not in known}
        assert list(differences({o: ours[o] for o in unexplained}, {o: theirs[o] for o in unexplained})) == []
