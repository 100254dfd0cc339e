"""Made tables of all versions give rows, names, lines and inlined functions; broken ones give FormatError."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import AARCH64, X86_64
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.gopclntab import GoTable
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.go_function_lookup import GoNames, go_names, without_type_arguments
from pyprof.unwind.formats.gopclntab import GoFrames, go_source
from pyprof.unwind.module_unwind_sources import open_sources
from tests.unwind.cfi_assembler import algebra
from tests.unwind.go_table import PROGRAM, TABLE, TEXT, VERSIONS, GoCode, go_elf, table
from tests.unwind.test_go_stacks import SYSTEMSTACK

MAIN, LEAF = TEXT + 0x40, TEXT + 0x80


def program(data: bytes) -> ElfFile:
    return ElfFile.from_bytes(data, "program")


def frames(*functions: GoCode, version: str = "1.20") -> GoFrames:
    made, funcdata = table(functions, version)
    source = go_source(program(go_elf(made, funcdata, functions)), X86_64, Diagnostics())
    assert source is not None
    return source


def names_of(version: str) -> GoNames:
    broken: list[str] = []
    found = go_names(program(go_elf(*table(PROGRAM, version))), TABLE, broken)
    assert found is not None
    assert broken == []
    return found


def shown(names: GoNames, svma: int) -> list[tuple[str, str | None, int]]:
    place = names.find(svma)
    assert place is not None
    return [(each.name, each.file, each.line) for each in place.places]


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_follow_the_frame_size(version: str) -> None:
    source = frames(*PROGRAM, version=version)
    rows = source.function_at(MAIN + 8)
    assert rows is not None
    assert (rows.start, rows.end) == (MAIN, LEAF)
    sizes = [(start - MAIN, rule.cfa_off, rule.ra.n) for start, rule in zip(rows.starts, rows.rules, strict=True)]
    assert sizes == [(0, 8, -8), (4, 24, -8), (0x3C, 8, -8)]
    assert [each.start for each in source.functions()] == source.extents()[0].tolist() == [TEXT, MAIN, LEAF]


@pytest.mark.parametrize("version", VERSIONS)
def test_first_function_of_a_stack_is_outermost(version: str) -> None:
    rows = frames(*PROGRAM, version=version).function_at(TEXT)
    assert rows is not None
    assert algebra(rows) == ["+0x0 cfa = sp; ra = undefined"]


def test_flag_marks_outermost_functions_and_signal_handlers_have_a_caller() -> None:
    top, handler = GoCode("main.top", flags=1), GoCode("runtime.sigtramp", flags=1)
    source = frames(top, handler)
    first, second = source.function_at(TEXT), source.function_at(TEXT + 0x40)
    assert first is not None
    assert second is not None
    assert "ra = undefined" in algebra(first)[0]
    assert "ra = [cfa - 8]" in algebra(second)[0]


@pytest.mark.parametrize(
    ("code", "saved_from"),
    [("4883ec10 48896c2408 488d6c2408", 9), ("55 4889e5 4883ec08", 4), ("4883ec10 90", None)],
    ids=["mov", "push", "none"],
)
def test_prologue_tells_from_where_the_frame_pointer_is_saved(code: str, saved_from: int | None) -> None:
    rows = frames(GoCode("main.f", code=bytes.fromhex(code))).function_at(TEXT)
    assert rows is not None
    saved = [start - TEXT for start, text in zip(rows.starts, algebra(rows), strict=True) if "fp = [cfa - 16]" in text]
    assert saved[:1] == ([saved_from] if saved_from is not None else [])


@pytest.mark.parametrize("name", ["runtime.cgocallback", "runtime.asyncPreempt", "runtime.sigpanic"])
def test_function_that_no_call_entered_has_a_caller_with_an_exact_pc(name: str) -> None:
    rows = frames(GoCode(name)).function_at(TEXT)
    assert rows is not None
    assert all(rule.signal for rule in rows.rules)


@pytest.mark.parametrize(
    ("code", "cfa", "ra"), [("415c0f054154", "cfa = sp", "ra = r12"), ("9090", "cfa = expr(deref)", "ra = [cfa - 8]")]
)
def test_code_that_pops_its_return_address_has_a_rule_if_it_keeps_that(code: str, cfa: str, ra: str) -> None:
    body = GoCode("syscall.rawVforkSyscall", frame=((0, 0x10), (-8, 0x30)), code=bytes(16) + bytes.fromhex(code))
    rows = frames(body).function_at(TEXT)
    assert rows is not None
    parts = algebra(rows)[1].split("; ")
    assert (parts[0], parts[-1]) == (f"+0x10 {cfa}", ra)


def test_switch_of_stacks_has_no_rule() -> None:
    body = GoCode("runtime.systemstack", size=len(SYSTEMSTACK), frame=((0, len(SYSTEMSTACK)),), code=SYSTEMSTACK)
    rows = frames(body).function_at(TEXT)
    assert rows is not None
    assert [(start - TEXT, bool(rule.cfa_expr)) for start, rule in zip(rows.starts, rows.rules, strict=True)] == [
        (0, False),
        (0x41, True),
        (0x6A, False),
    ]


def test_frame_that_the_code_has_left_has_no_rule_and_padding_has_one() -> None:
    rows = frames(GoCode("main.f", frame=((0, 4), (-8, 4)))).function_at(TEXT)
    assert rows is not None
    assert [(start - TEXT, bool(rule.cfa_expr)) for start, rule in zip(rows.starts, rows.rules, strict=True)] == [
        (0, False),
        (4, True),
        (8, False),
    ]


def test_aarch64_return_address_is_below_the_frame_or_in_the_link_register() -> None:
    made, funcdata = table()
    source = GoFrames(program(go_elf(made, funcdata)), GoTable(program(go_elf(made)), TABLE), AARCH64, Diagnostics())
    rows = source.function_at(MAIN)
    assert rows is not None
    first, body, _ = rows.rules
    assert (first.cfa_off, first.ra.reg) == (0, AARCH64.lr)
    assert (body.cfa_off, body.ra.n, dict(body.regs)[AARCH64.fp].n) == (16, -16, -24)


@pytest.mark.parametrize("version", VERSIONS)
def test_names_and_lines_of_each_version(version: str) -> None:
    names = names_of(version)
    assert shown(names, LEAF) == [("main.leaf", "/src/main.go", 10)]
    assert shown(names, LEAF + 0x20) == [("main.leaf", "/src/main.go", 12)]
    assert names.find(TEXT - 1) is names.find(TEXT + 0xC0) is names.find(-1) is names.find(1 << 64) is None


@pytest.mark.parametrize("version", ["1.18", "1.20"])
def test_inlined_functions_are_innermost_first_with_the_line_of_each_call(version: str) -> None:
    names = names_of(version)
    outer, main = ("main.outer", "/src/main.go"), ("main.main", "/src/main.go")
    assert shown(names, MAIN) == [(*main, 10)]
    assert shown(names, MAIN + 0x14) == [("main.inner", "/src/main.go", 10), (*outer, 12), (*main, 10)]
    assert shown(names, MAIN + 0x24) == [(*outer, 12), (*main, 10)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("main.Map[go.shape.int,go.shape.[]string]", "main.Map[...]"),
        ("main.(*List[go.shape.int]).Push.func1", "main.(*List[...]).Push.func1"),
        ("main.odd]name[", "main.odd]name["),
    ],
)
def test_type_arguments_are_shown_as_go_prints_them(name: str, expected: str) -> None:
    made = (GoCode(name),)
    found = go_names(program(go_elf(*table(made), made)), TABLE, [])
    assert found is not None
    assert without_type_arguments(name) == shown(found, TEXT)[0][0] == expected


def test_file_without_a_section_for_the_table_is_searched_for_its_header() -> None:
    made, funcdata = table()
    note = b"\4\0\0\0\4\0\0\0\4\0\0\0Go\0\0abcd"
    for headers in (True, False):
        data = bytearray(go_elf(made, funcdata, section=".data.rel.ro", headers=headers))
        assert program(bytes(data)).unwind_table(".gopclntab") is None  # nothing says that it is a Go program
        at = len(data)
        data += note
        struct.pack_into("<IIQQQQQQ", data, 64 + 56 * 7, 4, 4, at, 0, 0, len(note), len(note), 4)
        struct.pack_into("<H", data, 56, 8)
        found = program(bytes(data)).unwind_table(".gopclntab")
        assert found is not None
        assert found.svma == TABLE


BROKEN = {
    "version": (0, b"\xf3", "unknown version"),
    "zero bytes": (4, b"\1", "unknown version"),
    "quantum": (6, b"\3", "unknown version"),
    "address size": (7, b"\4", "addresses of 4 bytes"),
    "no functions": (8, bytes(8), "0 functions"),
    "many functions": (8, b"\0\0\0\0\1", "functions"),
    "index behind the end": (8, b"\0\0\2", "past the end"),
    "text elsewhere": (24, b"\0\0\x77", "outside of the code"),
    "far names": (32, b"\0\0\0\0\1", "outside of the table"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_header_is_refused(case: str) -> None:
    at, change, problem = BROKEN[case]
    made, funcdata = table()
    data = bytearray(made)
    data[at : at + len(change)] = change
    diagnostics = Diagnostics()
    elf = program(go_elf(bytes(data), funcdata))
    with pytest.raises(FormatError, match=problem):
        go_source(elf, X86_64, diagnostics)
    assert open_sources(elf, X86_64, ("go",), diagnostics) == []
    assert diagnostics.counts["unwind_table_broken:go"] == 1
    broken: list[str] = []
    assert go_names(elf, TABLE, broken) is None
    assert len(broken) == 1


def test_functions_that_do_not_ascend_are_refused() -> None:
    made, funcdata = table()
    at = int.from_bytes(made[64:72], "little")
    data = bytearray(made)
    data[at + 8 : at + 12] = b"\xff\0\0\0"
    with pytest.raises(FormatError, match="ascend"):
        go_source(program(go_elf(bytes(data), funcdata)), X86_64, Diagnostics())


@pytest.mark.parametrize(
    ("frame", "problem"),
    [((((0, 0), (8, 4))), "ascend"), (tuple((n, 1) for n in range(0x3F)), None)],
    ids=["no length", "whole"],
)
def test_value_table_must_ascend(frame: tuple[tuple[int, int], ...], problem: str | None) -> None:
    source = frames(GoCode("main.f", frame=frame))
    if problem is None:
        assert source.function_at(TEXT) is not None
        return
    with pytest.raises(FormatError, match=problem):
        source.function_at(TEXT)


def test_record_of_another_function_is_refused_and_counted() -> None:
    made, funcdata = table()
    at = int.from_bytes(made[64:72], "little")
    data = bytearray(made)
    data[at + 12 : at + 16] = data[at + 4 : at + 8]  # main.main has the record of runtime.goexit
    diagnostics = Diagnostics()
    source = go_source(program(go_elf(bytes(data), funcdata)), X86_64, diagnostics)
    assert source is not None
    with pytest.raises(FormatError, match="another function"):
        source.function_at(MAIN)
    assert [rows.start for rows in source.functions()] == [TEXT, LEAF]
    assert diagnostics.counts["go_function_broken"] == 1


@pytest.mark.parametrize("parent", [-1, 0x40], ids=["before", "behind"])
def test_inline_tree_with_a_call_outside_of_its_function_is_not_used(parent: int) -> None:
    wrong = (GoCode("main.f", inlined=((0, 0x40),), tree=(("main.inlined", parent),)),)
    found = go_names(program(go_elf(*table(wrong), wrong)), TABLE, [])
    assert found is not None
    assert [name for name, _, _ in shown(found, TEXT)] == ["main.f"]


def test_function_without_an_inline_tree_has_no_inlined_functions() -> None:
    made = (GoCode("main.f", inlined=((0, 0x40),), tree=(("main.inlined", 0),), funcdata=3),)
    found = go_names(program(go_elf(*table(made), made)), TABLE, [])
    assert found is not None
    assert [name for name, _, _ in shown(found, TEXT)] == ["main.f"]


def test_inline_tree_whose_name_begins_inside_a_string_is_not_used() -> None:
    made, funcdata = table()
    moved = bytearray(funcdata)
    moved[1 + 4] += 1
    found = go_names(program(go_elf(made, bytes(moved))), TABLE, [])
    assert found is not None
    assert [name for name, _, _ in shown(found, MAIN + 0x24)] == ["main.main"]


def test_value_table_that_is_longer_than_what_is_read_first_is_whole() -> None:
    steps = tuple((8 * (n % 2), 1) for n in range(0x400))
    rows = frames(GoCode("main.f", size=0x400, frame=steps, lines=((1, 0x400),))).function_at(TEXT)
    assert rows is not None
    assert len(rows.starts) == 0x400


def test_inlined_calls_that_contain_each_other_end() -> None:
    circle = (GoCode("main.f", inlined=((0, 0x40),), tree=(("main.inlined", 0),)),)
    found = go_names(program(go_elf(*table(circle), circle)), TABLE, [])
    assert found is not None
    assert len(shown(found, TEXT)) == 257


def exhaust(data: bytes) -> None:
    """Ask a table for everything."""
    try:
        elf = program(go_elf(data, bytes(64)))
        source = go_source(elf, X86_64, Diagnostics())
        names = go_names(elf, TABLE, [])
    except FormatError:
        return
    if source is None:
        return
    for at, rows in enumerate(source.functions()):
        assert list(rows.starts) == sorted(rows.starts)
        if at > 20:
            break
    for svma in range(TEXT, TEXT + 0x100, 8):
        if names is not None:
            names.find(svma)


@pytest.mark.fuzz
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(VERSIONS)), st.data())
def test_mutated_table_gives_rows_or_format_error(version: str, choose: st.DataObject) -> None:
    data = bytearray(table(PROGRAM, version)[0])
    for _ in range(choose.draw(st.integers(1, 6))):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    exhaust(bytes(data[: choose.draw(st.just(len(data)) | st.integers(8, len(data)))]))
