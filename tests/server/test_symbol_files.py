"""Tests of uploaded symbol files: which are kept, and which frames they name."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.ingest.segment_to_rows import file_offset, frame_of, module_of, text_of
from pyprof.fleet.server.store.symbol_files import SymbolFiles
from pyprof.importers import pprof
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, Profile
from tests.agent.filled import marked, segment
from tests.server.test_parts import FullDisk

pytestmark = pytest.mark.system

BUILD = "cd" * 20
HEAD = f"MODULE Linux x86_64 0123 libplugin.so\nINFO CODE_ID {BUILD.upper()}\n"
LOADS = "INFO LOAD 0 0 2f00\nINFO LOAD 3000 4000 1000\n"
LINES = "FILE 0 plugin.c\nFUNC 4230 10 0 plug_in\n4230 10 7 0\nPUBLIC 2060 0 other\n"
WHOLE = HEAD + LOADS + LINES


def unnamed() -> Profile:
    """Return a profile whose plugin has no names, has a build ID, and is mapped from its third page on."""
    found = marked()
    plugin = replace(found.modules[2], build_id=BUILD, offset=0x2000)
    return pprof.read_pprof(segment(replace(found, modules=(*found.modules[:2], plugin)), "x", 10**18).data, "x")


def named(files: SymbolFiles, tenant: str = "one") -> dict[str, Frame]:
    """Return the frames that have new names, by their former titles."""
    profile, names = unnamed(), files.make_completer(tenant)
    found = {}
    for frame in profile.frames:
        text = text_of(frame, profile.modules)
        module, offset = module_of(text), file_offset(text)
        if module is not None and offset is not None:
            old = frame_of(text, frame.module)
            new = names(old, module.build_id, offset)
            if new != old:
                found[old.title] = new
    return found


def test_code_without_names_has_those_of_its_builds_file_and_of_its_tenants(tmp_path: Path) -> None:
    files = SymbolFiles(str(tmp_path / "symbols"), 10_000)
    assert named(files) == {}
    files.store_file("one", BUILD, gzip.compress(WHOLE.encode()))
    found = {
        title: (frame.title, [(line.function, line.file, line.line) for line in frame.lines])
        for title, frame in named(files).items()
    }
    assert found == {
        "libplugin.so+0x3233": ("plug_in", [("plug_in", "plugin.c", 7)]),
        "libplugin.so+0x2076": ("other", [("other", None, 0)]),
    }
    assert named(files, "two") == {}
    (tmp_path / "symbols" / "ef.sym").touch()
    assert [files.has("one", BUILD), files.has("two", BUILD), files.has("one", "../ef")] == [True, False, False]


def test_row_that_does_not_say_where_in_the_file_its_code_is_gets_no_name() -> None:
    profile = unnamed()
    texts = [text_of(frame, profile.modules) for frame in profile.frames]
    assert {0x3233, 0x2076} <= {file_offset(text) for text in texts}
    assert {file_offset(text.replace("+", "")) for text in texts} == {None}


def test_later_file_of_a_build_takes_the_place_of_the_first(tmp_path: Path) -> None:
    files = SymbolFiles(str(tmp_path / "symbols"), 300)
    for name in ("plug_in", "plugged"):
        files.store_file("one", BUILD, WHOLE.replace("plug_in", name).encode())
        assert named(files)["libplugin.so+0x3233"].title == name
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{BUILD}.sym"]


@pytest.mark.parametrize(
    ("build_id", "text", "reason"),
    [
        (BUILD, "no symbols", "bad_symbols"),
        (BUILD, HEAD.partition("\n")[0] + "\n" + LOADS, "bad_symbols"),
        (BUILD, HEAD + LINES, "bad_symbols"),
        ("ef" * 20, WHOLE, "bad_symbols"),
        ("../" + BUILD, WHOLE.replace(BUILD.upper(), f"../{BUILD}"), "bad_symbols"),
        (BUILD, WHOLE + "FUNC 1 1 0 " + "a" * 1000, "too_many_symbols"),
    ],
    ids=["not one", "no id", "no segments", "of another build", "a path", "too large"],
)
def test_other_bodies_are_refused_and_nothing_of_them_is_kept(
    build_id: str, text: str, reason: str, tmp_path: Path
) -> None:
    files = SymbolFiles(str(tmp_path / "symbols"), 1000)
    with pytest.raises(Refused) as refused:
        files.store_file("one", build_id, gzip.compress(text.encode()))
    assert refused.value.reason == reason
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_full_disk_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    SymbolFiles(str(tmp_path / "symbols"), 10_000).store_file("one", BUILD, WHOLE.encode())
    files = SymbolFiles(str(tmp_path / "symbols"), 10_000, FullDisk())
    with pytest.raises(Refused) as refused:
        files.store_file("one", BUILD, (HEAD + LOADS).encode())
    assert refused.value.reason == "disk_full"
    assert named(files)["libplugin.so+0x3233"].title == "plug_in"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{BUILD}.sym"]


def test_name_that_an_agent_found_stays_whatever_a_file_says(tmp_path: Path) -> None:
    files = SymbolFiles(str(tmp_path / "symbols"), 10_000)
    server = next(module.build_id for module in unnamed().modules if module.name == "server")
    files.store_file("one", server, WHOLE.replace(BUILD.upper(), server).replace("2060", "1000").encode())
    assert named(files) == {}
