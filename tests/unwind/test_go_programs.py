"""Real Go programs: the function table equals .debug_frame and DWARF of the same program, and walks stripped ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
from bisect import bisect_right
from pathlib import Path

import pytest

from pyprof.model.address_space import AddressSpace
from pyprof.model.stacks import native_key
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.gopclntab import GoTable
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.dwarf_attribute_forms import Deadline, OutOfTime
from pyprof.symbolize.dwarf_source_lines import SourceLines
from pyprof.symbolize.go_function_lookup import go_names
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import Symbolizer
from pyprof.unwind.formats.cfi_sections import open_debug_frame
from pyprof.unwind.formats.gopclntab import go_source
from pyprof.unwind.rules import FunctionRows, RegKind, Rule
from tests.cli.support import pyprof
from tests.objfile.live import mappings
from tests.support import PROGRAMS, go_cache, need

pytestmark = pytest.mark.system

OUTERMOST = ("runtime.rt0_go", "runtime.mstart", "runtime.goexit", "runtime.sigtramp", "runtime.execute")
"""Functions whose end of the stack only one of the tables states."""
BUILDS = {
    "plain": ([], {}),
    "position-independent": (["-buildmode=pie"], {}),
    "aarch64": ([], {"GOARCH": "arm64"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("go")


def built(folder: Path, name: str, flags: list[str], variables: dict[str, str]) -> Path:
    program = folder / name
    if not program.exists():
        command = [need("go"), "build", *flags, "-o", str(program), str(PROGRAMS / "ladder.go")]
        environment = {**os.environ, "GOCACHE": go_cache(), "GO111MODULE": "off", **variables}
        subprocess.run(command, check=True, env=environment, timeout=600)
    return program


def plain(rule: Rule) -> tuple[object, ...]:
    return rule.cfa_reg, rule.cfa_off, rule.ra


def rule_at(rows: FunctionRows, at: int) -> Rule:
    return rows.rules[bisect_right(rows.starts, at) - 1]


def table_svma(elf: ElfFile) -> int:
    place = elf.unwind_table(".gopclntab")
    assert place is not None
    return place.svma


def table_of(elf: ElfFile) -> GoTable:
    return GoTable(elf, table_svma(elf))


@pytest.mark.parametrize("build", BUILDS)
def test_rows_equal_those_of_debug_frame(folder: Path, build: str) -> None:
    elf = ElfFile.open(str(built(folder, build, *BUILDS[build])))
    assert elf.arch is not None
    diagnostics = Diagnostics()
    ours, theirs = (source(elf, elf.arch, diagnostics) for source in (go_source, open_debug_frame))
    assert ours is not None
    assert theirs is not None
    table, compared, different = table_of(elf), 0, []
    for rows in ours.functions():
        function, other = table.function_at(rows.start), theirs.function_at(rows.start)
        assert function is not None
        if other is None or function.name in OUTERMOST:
            continue
        for at in sorted({*rows.starts, *other.starts}):
            mine, its = rule_at(rows, at), rule_at(other, at)
            if at < other.end and not (mine.cfa_expr or mine.switching) and mine.ra.kind is not RegKind.UNDEFINED:
                compared += 1
                different += [(function.name, hex(at))] * (plain(mine) != plain(its))
    assert different == []
    assert compared > 5000
    assert diagnostics.counts == {}


@pytest.mark.parametrize("build", ["plain", "position-independent"])
def test_names_and_lines_equal_those_of_dwarf(folder: Path, build: str) -> None:
    elf = ElfFile.open(str(built(folder, build, *BUILDS[build])))
    names, lines, table = go_names(elf, table_svma(elf), []), SourceLines(elf), table_of(elf)
    assert names is not None
    same = compared = 0
    for at in range(table.count):
        function = table.function(at)
        ends = table.frame_sizes(function).ends
        if (not function.name.startswith("main.") and at % 10) or not ends:
            continue
        for svma in range(function.start, ends[-1], 16):
            place = names.find(svma)
            assert place is not None
            compared += 1
            same += [as_in_go(*each) for each in place.places] == [
                as_in_go(*each) for each in lines.find(svma, Deadline(60))
            ]
    assert compared > 1000
    assert same / compared > 0.99  # DWARF leaves out what is inlined into generated methods


def as_in_go(name: str, file: str | None, line: int) -> tuple[str, str | None, int]:
    return re.sub(r"\[.*\]", "[...]", name.removesuffix(".abi0")), file, line


def test_inlined_functions_of_a_program_with_dwarf_need_no_time_for_dwarf(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = built(folder, "plain", *BUILDS["plain"])
    table = table_of(ElfFile.open(str(program)))
    [deep] = table.find_functions(b"main.deep")

    def find(*_: object) -> None:
        raise OutOfTime

    monkeypatch.setattr(SourceLines, "find", find)
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE) as process:
        try:
            space = AddressSpace(1, process.pid, 0, mappings(process.pid), lambda *_: b"", "")
            symbolizer = Symbolizer(ImageStore(Diagnostics()), NameCache(Diagnostics()), {1: space})
            keys = [native_key(1, pc, True, Trust.GO) for pc in range(deep.start, table.frame_sizes(deep).ends[-1])]
            frames = symbolizer.resolve(keys).frames
        finally:
            process.kill()
    assert {tuple(line.function for line in frame.lines) for frame in frames} == {
        ("main.deep",),
        ("main.inlined", "main.deep"),
    }
    assert all(frame.lines[-1].line for frame in frames)
    assert not symbolizer.out_of_time


@pytest.mark.parametrize("flags", [[], ["-buildmode=pie"]], ids=["fixed", "pie"])
def test_stripped_program_has_whole_named_stacks(folder: Path, flags: list[str]) -> None:
    program = built(folder, f"stripped{len(flags)}", [*flags, "-ldflags=-s -w"], {})
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = json.loads(pyprof("dump", "-p", str(process.pid), "--json").stdout)
        finally:
            process.kill()
    stacks = [[frame["function"] for frame in thread["frames"]] for thread in found["threads"]]
    (own,) = [stack for stack in stacks if "main.main" in stack]
    below = own[own.index("main.leaf") :]
    assert below == ["main.leaf", "main.inlined", "main.deep", "main.deep", "main.deep", "main.main", *below[6:]]
    assert below[6:] == ["runtime.main", "runtime.goexit"]
