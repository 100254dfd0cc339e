"""Tests of lines and inlined functions against addr2line and llvm-symbolizer.

They cover various compilers and DWARF versions.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from pyprof.objfile.debug_files import DebugFiles
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.dwarf_attribute_forms import Deadline, OutOfTime
from pyprof.symbolize.dwarf_source_lines import SourceLines, SourcePlace
from tests.support import build, need

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "programs"
FOREVER = Deadline(None)
Known = tuple[str, str, int]


def svmas_of(program: Path, count: int = 400) -> list[int]:
    text = ElfFile.open(str(program)).sections[".text"]
    return random.Random(7).sample(range(text.addr, text.addr + text.size), count)


def reference(program: Path, svmas: list[int], tool: str = "llvm-symbolizer") -> list[list[Known]]:
    """Return (function, file, line) of each address from leaf to root."""
    options = ["-a", "-f", "-i", "-e", str(program)]
    if tool == "llvm-symbolizer":
        options += ["--output-style=GNU", "--no-demangle"]
    out = subprocess.run(
        [need(tool), *options, *map(hex, svmas)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    found = []
    for block in re.split(r"^0x[0-9a-f]+\n", out, flags=re.M)[1:]:
        lines = block.strip().split("\n")
        places = []
        for name, place in zip(lines[::2], lines[1::2], strict=True):
            file, _, line = re.sub(r" \(disc.*", "", place).rpartition(":")
            places.append((name, os.path.normpath(file), 0 if line == "?" else int(line)))
        found.append(places)
    return found


def as_known(places: list[SourcePlace]) -> list[Known]:
    return [(place.name, place.file or "??", place.line) for place in places]


def assert_agrees(program: Path) -> None:
    svmas = svmas_of(program)
    source = SourceLines(ElfFile.open(str(program)))
    depth = known = 0
    for svma, theirs in zip(svmas, reference(program, svmas), strict=True):
        mine = as_known(source.find(svma, FOREVER))
        if mine:
            assert [place[1:] for place in mine] == [place[1:] for place in theirs], hex(svma)
            # the tool takes the outermost name from the symbol table, as the symbolizer does elsewhere
            for (name, _, _), (plain, _, _) in zip(mine[:-1], theirs[:-1], strict=True):
                assert name == plain or name.endswith(f"::{plain}"), hex(svma)  # pyprof adds the enclosing scope
            known += 1
            depth = max(depth, len(mine))
        else:  # crt files have no DWARF, so the tool uses the symbol table
            assert theirs[0][2] == 0
    assert source.broken == []
    assert known > len(svmas) // 2
    assert depth > 3


@pytest.mark.parametrize("flags", [("-gdwarf-3",), ("-gdwarf-4",), ("-gdwarf-5",), ("-gz",), ("-gdwarf64",)], ids=str)
def test_gcc_lines_are_those_of_llvm_symbolizer(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_agrees(build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", *flags, compiler="g++"))


@pytest.mark.parametrize(
    "flags", [("-gdwarf-4",), ("-gdwarf-5",), ("-ffunction-sections", "-Wl,--gc-sections")], ids=str
)
def test_clang_lines_are_those_of_llvm_symbolizer(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_agrees(build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", *flags, compiler="clang++"))


@pytest.mark.parametrize("uses_dwz", [False, True], ids=["plain", "dwz"])
@pytest.mark.parametrize("version", [4, 5])
def test_code_of_local_classes_has_the_inlined_functions_of_llvm_symbolizer(
    version: int, uses_dwz: bool, tmp_path: Path
) -> None:
    source = PROGRAMS / "local_classes.cc"
    program = build(source, tmp_path / "program", "-O2", "-g", f"-gdwarf-{version}", compiler="g++")
    if uses_dwz:
        subprocess.run([need("dwz"), str(program)], capture_output=True, timeout=60, check=True)
    assert_agrees(program)


@pytest.mark.parametrize("flags", [("-gdwarf-4",), ("-gdwarf-3", "-O0")], ids=str)
def test_gcc_lines_are_those_of_addr2line(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Compare only what addr2line of binutils 2.40 does correctly: it reports a wrong file for some DWARF 5 calls."""
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", *flags, compiler="g++")
    svmas = svmas_of(program)
    source = SourceLines(ElfFile.open(str(program)))
    for svma, theirs in zip(svmas, reference(program, svmas, "addr2line"), strict=True):
        mine = as_known(source.find(svma, FOREVER))
        assert [place[1:] for place in mine] == [place[1:] for place in theirs] or not mine


def test_functions_without_linkage_names_say_what_they_belong_to(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", compiler="g++")
    source = SourceLines(ElfFile.open(str(program)))
    names = {place.name for svma in svmas_of(program, 1000) for place in source.find(svma, FOREVER)[:-1]}
    assert "ns::helper" in names
    assert "local::L::f" in names
    assert "main::{lambda}::operator()" in names
    assert "operator()" not in names


def test_rust_lines_are_those_of_addr2line(tmp_path: Path) -> None:
    program = tmp_path / "names"
    subprocess.run(
        [need("rustc"), "-O", "-g", "-o", str(program), str(PROGRAMS / "names.rs")],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    svmas = svmas_of(program)
    source = SourceLines(ElfFile.open(str(program)))
    same = known = 0
    for svma, theirs in zip(svmas, reference(program, svmas, "addr2line"), strict=True):
        mine = as_known(source.find(svma, FOREVER))
        if mine and theirs[0][1] != "??":
            known += 1
            same += [place[1:] for place in mine] == [place[1:] for place in theirs]
    assert known > 100
    assert same >= known * 0.98


def test_debug_file_packed_by_dwz_has_all_names(tmp_path: Path) -> None:
    dwz = need("dwz")
    plain, debugs = {}, []
    for name in ("one", "two"):
        program = build(PROGRAMS / "inlines.cc", tmp_path / name, "-O2", "-g", f"-DNAME={name}", compiler="g++")
        source = SourceLines(ElfFile.open(str(program)))
        plain[name] = [source.find(svma, FOREVER) for svma in svmas_of(program)]
        debugs.append(program)
    subprocess.run([dwz, "-m", str(tmp_path / "common"), *map(str, debugs)], check=True, timeout=60)
    files = DebugFiles(Diagnostics(), [])
    for program in debugs:
        elf = ElfFile.open(str(program))
        source = SourceLines(elf, 0, lambda debug: files.find_alternate(debug, ""))
        assert [source.find(svma, FOREVER) for svma in svmas_of(program)] == plain[program.name]
        assert source.broken == []


def test_addresses_of_a_debug_file_are_shifted(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", compiler="g++")
    elf = ElfFile.open(str(program))
    plain, shifted = SourceLines(elf), SourceLines(elf, 0x5000)
    for svma in svmas_of(program, 50):
        assert shifted.find(svma + 0x5000, FOREVER) == plain.find(svma, FOREVER)


def test_no_time_means_out_of_time_and_later_an_answer(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", compiler="clang++")
    source = SourceLines(ElfFile.open(str(program)))
    known = SourceLines(ElfFile.open(str(program)))
    svma = next(s for s in svmas_of(program) if known.find(s, FOREVER))
    with pytest.raises(OutOfTime):
        source.find(svma, Deadline(-1.0))
    assert source.find(svma, FOREVER)


def test_waits_for_a_processor_do_not_use_up_the_time_for_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed = processor = 0.0
    monkeypatch.setattr("time.monotonic", lambda: elapsed)
    monkeypatch.setattr("time.thread_time", lambda: processor)
    deadline = Deadline(1.0)
    elapsed, processor = 4.9, 0.9
    deadline.check()
    elapsed = 5.1
    with pytest.raises(OutOfTime):
        deadline.check()
    elapsed, processor = 1.2, 1.1
    with pytest.raises(OutOfTime):
        deadline.check()


def test_split_dwarf_gives_lines_and_is_noticed(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", "-gsplit-dwarf", compiler="g++")
    source = SourceLines(ElfFile.open(str(program)))
    found = [source.find(svma, FOREVER) for svma in svmas_of(program)]
    assert sum(bool(places and places[0].line) for places in found) > 100
    assert source.split
