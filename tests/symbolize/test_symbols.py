"""Tests of the symbol of an address: assembled cases, and every symbol of real files against nm and objdump."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pyprof.objfile.elf_file import ElfFile
from pyprof.symbolize.elf_symtab import SymbolSources, read_symbol_sources
from pyprof.symbolize.symbol_table import SymbolTable
from tests.objfile.live import library, where
from tests.support import build, need

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "programs"
FUNCTIONS = ("FUNC", "IFUNC", "GNU_IFUNC")


def run(*command: str | Path) -> str:
    words = [need(str(command[0])), *(str(word) for word in command[1:])]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def sources(path: Path, debug: Path | None = None) -> SymbolSources:
    return read_symbol_sources(ElfFile.open(str(path)), lambda: ElfFile.open(str(debug)) if debug else None)


def names_at(path: Path, svmas: list[int], debug: Path | None = None) -> list[str | None]:
    table = SymbolTable(sources(path, debug).rows)
    rows = table.find(np.array(svmas, np.uint64)).tolist()
    return [table.name(row) if row >= 0 else None for row in rows]


def nm(path: Path, *flags: str) -> dict[str, int]:
    lines = [line.split() for line in run("nm", "--defined-only", *flags, path).splitlines()]
    return {name: int(value, 16) for value, _, name in lines}


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROGRAMS / "gaps.S", tmp_path_factory.mktemp("gaps") / "gaps.so", "-shared", "-nostdlib")


@pytest.mark.parametrize(
    ("symbol", "offset", "expected"),
    [
        ("sized", 0, "sized"),  # global precedes weak, weak precedes local, then the shorter name
        ("sized", 15, "sized"),
        ("sized", 16, None),  # in the gap between functions
        ("sized", 31, None),
        ("unsized", 0, "unsized"),
        ("unsized", 15, "unsized"),
        ("outer", 0, "outer"),
        ("outer", 8, "outer"),  # the label does not count
        ("inner_entry", 0, "inner_entry"),
        ("inner_entry", 7, "inner_entry"),
        ("inner_entry", 8, "outer"),  # beyond the inner function, still in the outer one
        ("inner_entry", 15, "outer"),
        ("last_unsized", 0, "last_unsized"),
        ("last_unsized", 31, "last_unsized"),
        ("last_unsized", 32, None),  # at the end of the section
        ("data_object", 0, None),
    ],
)
def test_address_has_the_name_of_the_code_that_holds_it(
    gaps: Path, symbol: str, offset: int, expected: str | None
) -> None:
    assert names_at(gaps, [nm(gaps)[symbol] + offset]) == [expected]


def test_every_function_of_a_program_is_named_as_by_readelf(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "inlines", "-O1", "-static", compiler="g++")
    rows = [line.split() for line in run("readelf", "-sW", program).splitlines()]
    functions = [(int(row[1], 16), int(row[2], 0), row[7]) for row in rows if len(row) == 8 and row[3] in FUNCTIONS]
    functions = [function for function in functions if function[1]]
    assert len(functions) > 1000
    for part in (lambda size: 0, lambda size: size // 2, lambda size: size - 1):
        svmas = [start + part(size) for start, size, _ in functions]
        for svma, name in zip(svmas, names_at(program, svmas), strict=True):
            holding = {n for start, size, n in functions if start <= svma < start + size}
            assert name in holding


@pytest.mark.parametrize("stripped", [False, True], ids=["symtab", "dynsym"])
def test_sampled_addresses_are_named_as_by_addr2line(stripped: bool, tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "inlines", "-O1", "-rdynamic", compiler="g++")
    if stripped:
        run("strip", program)
    text = ElfFile.open(str(program)).sections[".text"]
    svmas = random.Random(1).sample(range(text.addr, text.addr + text.size), 500)
    answer = run("addr2line", "-f", "-e", program, *map(hex, svmas)).splitlines()[::2]
    starts = nm(program, "-D") if stripped else nm(program)
    named = 0
    for theirs, mine in zip(answer, names_at(program, svmas), strict=True):
        if mine is not None:  # addr2line names gaps after the preceding function
            assert starts[mine] == starts[theirs]
            named += 1
    assert named > 300


def test_hand_written_code_in_libc_start_files_is_named(tmp_path: Path) -> None:
    program = where(tmp_path)
    assert names_at(program, [nm(program)["_start"] + 5]) == ["_start"]


def test_stripped_file_with_gnu_debugdata_names_static_functions(tmp_path: Path) -> None:
    program = where(tmp_path, "where", "-rdynamic")
    expected = nm(program)
    need("xz")
    mini = tmp_path / "mini"
    run("objcopy", "-S", "--keep-symbol=move_text", "--add-symbol", "x=.text:0", program, tmp_path / "unused")
    run("objcopy", "--only-keep-debug", program, mini)
    run("xz", "-k", mini)
    run("strip", "--strip-all", program)
    run("objcopy", "--add-section", f".gnu_debugdata={mini}.xz", program)
    found = sources(program)
    assert found.complete
    assert ".gnu_debugdata" in found.names
    assert names_at(program, [expected["move_text"] + 1, expected["main"]]) == ["move_text", "main"]


def test_stripped_file_takes_names_from_its_debug_file(tmp_path: Path) -> None:
    program, debug = where(tmp_path), tmp_path / "where.debug"
    expected = nm(program)
    run("objcopy", "--only-keep-debug", program, debug)
    run("strip", program)
    assert names_at(program, [expected["move_text"] + 1]) == [None]
    assert not sources(program).complete
    assert names_at(program, [expected["move_text"] + 1], debug) == ["move_text"]
    assert sources(program, debug).complete


def test_file_without_section_headers_names_what_it_exports(tmp_path: Path) -> None:
    lib = library(tmp_path)
    svma = nm(lib, "-D")["in_library"]
    data = bytearray(lib.read_bytes())
    data[40:48] = bytes(8)
    data[60:64] = bytes(4)
    lib.write_bytes(data)
    assert names_at(lib, [svma, svma + 2]) == ["in_library", "in_library"]


@pytest.mark.parametrize(
    "flags", [(), ("-Wl,-z,now",), ("-fcf-protection", "-Wl,-z,ibtplt"), ("-no-pie",), ("-fuse-ld=lld",)], ids=str
)
def test_plt_entries_are_named_as_by_objdump(flags: tuple[str, ...], tmp_path: Path) -> None:
    if "-fuse-ld=lld" in flags:
        need("ld.lld")
    program = build(PROGRAMS / "inlines.cc", tmp_path / "plt", *flags, compiler="g++")
    sections = [f"-j{name}" for name in (".plt", ".plt.sec", ".plt.got") if name in ElfFile.open(str(program)).sections]
    listing = run("objdump", "-d", *sections, program)
    expected = {int(svma, 16): name for svma, name in re.findall(r"^([0-9a-f]+) <(.*@plt)>:$", listing, re.M)}
    assert len(expected) > 10
    assert names_at(program, list(expected)) == list(expected.values())


def test_symbol_versions_are_kept_in_the_raw_name(tmp_path: Path) -> None:
    (tmp_path / "versions.c").write_text(
        'int f1(void) { return 1; }\nint f2(void) { return 2; }\n'
        '__asm__(".symver f1, f@V1");\n__asm__(".symver f2, f@@V2");\n'
    )  # fmt: skip
    (tmp_path / "map").write_text("V1 { local: *; };\nV2 { global: f; } V1;\n")
    flags = ("-shared", "-fPIC", f"-Wl,--version-script={tmp_path / 'map'}")
    lib = build(tmp_path / "versions.c", tmp_path / "versions.so", *flags)
    starts = nm(lib)
    assert names_at(lib, [starts["f@@V2"]]) in (["f@@V2"], ["f"], ["f2"])


def test_symbols_of_a_large_file_are_read_at_once() -> None:
    """Check that the columns contain every function and that one lookup serves all addresses."""
    python = ElfFile.open("/proc/self/exe")
    table = SymbolTable(read_symbol_sources(python, lambda: None).rows)
    if len(table) < 2:
        pytest.skip("this Python exports nothing from its executable")
    middle = table.start + (table.end - table.start) // np.uint64(2)
    assert (table.find(table.start) == np.arange(len(table))).all()
    assert (table.find(middle) >= 0).all()
    assert (table.start[1:] > table.start[:-1]).all()
