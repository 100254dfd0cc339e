"""Tests of matching the functions of two builds by name."""

from __future__ import annotations

import pytest

from pyprof.comparison.function_matching import NAMELESS, matching, plain_module, plain_name
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile
from pyprof.model.unwind_result import Trust
from tests.exporters.profiles import Builder


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("parse.isra.0", "parse"),
        ("parse.constprop.1.isra.0", "parse"),
        ("parse.cold", "parse"),
        ("ns::f(int) [clone .part.3]", "ns::f(int)"),
        ("core::fmt::write::h0123456789abcdef", "core::fmt::write"),
        ("operator.split", "operator.split"),
        (".cold", ".cold"),
    ],
)
def test_copies_by_the_compiler_are_the_function(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/lib/libz.so.1.2.13", "libz.so"),
        ("/lib/libc-2.31.so", "libc.so"),
        ("/usr/bin/server", "server"),
        ("/a/mod.cpython-311-x86_64-linux-gnu.so", "mod.cpython-311-x86_64-linux-gnu.so"),
    ],
)
def test_file_is_known_without_folder_and_version(path: str, plain: str) -> None:
    assert plain_module(path) == plain


def native(name: str, module: int = 0, rel: int = 0x10, symbol: bool = True) -> Frame:
    return Frame(FrameKind.NATIVE, rel, rel, rel, module, (Line(name, name if symbol else ""),), Trust.FP, name)


def python(name: str, file: str) -> Frame:
    return Frame(FrameKind.INTERPRETER, 0, 0, 0, -1, (Line(name, name, 0, file, 3),), Trust.INTERPRETER, name)


def module(path: str, build_id: str) -> ModuleInfo:
    return ModuleInfo(path, build_id, 0, 1 << 20, 0, True, True)


def profile(frames: list[Frame], *modules: ModuleInfo) -> Profile:
    builder = Builder()
    for frame in frames:
        builder.sample(builder.node([frame]))
    return replace(builder.build(), modules=modules)


def pairs(before: Profile, after: Profile) -> set[tuple[str, str]]:
    """Return (name before, name after) of the functions that match."""
    found = matching(before, after)
    at = {row[0]: frame.title for row, frame in zip(found.before, before.frames, strict=True)}
    return {(at[row[0]], frame.title) for row, frame in zip(found.after, after.frames, strict=True) if row[0] in at}


def test_a_new_build_elsewhere_has_the_same_functions() -> None:
    before = profile([native("main"), native("parse", rel=0x20)], module("/old/server", "aa"))
    after = profile([native("main", rel=0x90), native("parse.isra.0", rel=0x20)], module("/new/server", "bb"))
    assert pairs(before, after) == {("main", "main"), ("parse", "parse.isra.0")}


def test_functions_of_one_name_in_several_files_are_told_apart() -> None:
    before = profile([native("init", 0), native("init", 1)], module("/a/liba.so.1", "a1"), module("/a/libb.so.1", "b1"))
    after = profile([native("init", 0), native("init", 1)], module("/b/libb.so.2", "b2"), module("/b/liba.so.2", "a2"))
    found = matching(before, after)
    assert found.before == [found.after[1], found.after[0]]
    assert len(found.functions) == 2


def test_another_name_of_the_program_is_no_other_program_where_names_are_unique() -> None:
    before = profile([native("main"), native("f", 1)], module("/x/server-old", "a"), module("/x/lib.so", "c"))
    after = profile([native("main"), native("f", 1)], module("/x/server-new", "b"), module("/x/lib.so", "c"))
    assert pairs(before, after) == {("main", "main"), ("f", "f")}


def test_functions_without_names_are_known_in_the_same_build_only() -> None:
    frames = [native("server!0x10", symbol=False), native("server!0x20", rel=0x20, symbol=False)]
    before = profile(frames, module("/x/server", "aa"))
    same, other = profile(frames, module("/y/server", "aa")), profile(frames, module("/x/server", "bb"))
    assert len(matching(before, same).functions) == 2
    (function,) = matching(before, other).functions
    assert function.name == NAMELESS


def test_scripts_elsewhere_are_the_same_where_that_is_clear() -> None:
    before = profile([python("load", "/v1/app/models.py"), python("__init__", "/v1/a/__init__.py")])
    after = profile([python("load", "/v2/app/models.py"), python("__init__", "/v2/a/__init__.py")])
    assert len(matching(before, after).functions) == 2
    assert len(matching(before, profile([native("load"), native("__init__")], module("/x", "a"))).functions) == 4
