"""Tests of perf maps: their lines, growing files, and files that are rewritten."""

from __future__ import annotations

import os
import re
import subprocess
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.jit_code_map import ALWAYS, NamedRanges
from pyprof.objfile import byte_source
from pyprof.objfile.byte_source import GrowingFile
from pyprof.objfile.untrusted_file_access import open_below
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.perf_map_and_jitdump import PerfMapCode
from pyprof.runtime_code.process_code import perf_map_head
from pyprof.symbolize import perf_map
from pyprof.symbolize.perf_map import MAX_LINE, MAX_NAME, PerfMapReader


def lines_of(found: NamedRanges) -> list[tuple[int, int, str]]:
    ends = np.cumsum(found.length).tolist()
    names = [found.names[a:b].decode("utf-8", "backslashreplace") for a, b in pairwise([0, *ends])]
    return list(zip(found.start.tolist(), found.end.tolist(), names, strict=True))


def test_lines_of_every_writer_are_read() -> None:
    reader = PerfMapReader(Diagnostics())
    text = b"7f00 10 py::f:/a b.py\n0x7f10 0x8 LazyCompile:~g x.js:1\nFFFF0 1  void A::b(int)\r\n"
    assert lines_of(reader.read(text)) == [
        (0x7F00, 0x7F10, "py::f:/a b.py"),
        (0x7F10, 0x7F18, "LazyCompile:~g x.js:1"),
        (0xFFFF0, 0xFFFF1, "void A::b(int)"),
    ]


def test_line_that_comes_in_two_pieces_is_one_line() -> None:
    reader = PerfMapReader(Diagnostics())
    assert lines_of(reader.read(b"100 10 on")) == []
    assert lines_of(reader.read(b"e\n200 10 two\n3")) == [(0x100, 0x110, "one"), (0x200, 0x210, "two")]


def test_lines_that_say_nothing_are_counted() -> None:
    diagnostics = Diagnostics()
    text = b"zz 10 f\n100 0 g\n100 10\nffffffffffffffff 10 h\n10 10 \xff\n"
    assert lines_of(PerfMapReader(diagnostics).read(text)) == [(0x10, 0x20, "\\xff")]
    assert diagnostics.counts["perf_map_line_invalid"] == 4


def test_line_of_any_length_is_read_in_one_pass() -> None:
    """Read many blanks, for which a backtracking regular expression would need minutes."""
    reader = PerfMapReader(Diagnostics())
    blanks = b" \t" * 500_000
    text = (
        b"100 10 a" + blanks + b"b\n200" + blanks + b"zz\n300 10" + blanks + b"c\n400 10 d" + blanks + b"\n500 10 e\n"
    )
    assert lines_of(reader.read(text)) == [(0x100, 0x110, "a"), (0x400, 0x410, "d"), (0x500, 0x510, "e")]


def test_long_line_in_pieces_is_its_beginning() -> None:
    """Check that the end of a long line is not parsed as a line."""
    reader = PerfMapReader(Diagnostics())
    assert lines_of(reader.read(b"100 10 " + b"a" * 50_000)) == []
    assert len(reader._rest) == MAX_LINE, "what is looked at of a line, not all of it"
    assert lines_of(reader.read(b"\n200 10 b\n")) == [(0x100, 0x110, "a" * MAX_NAME), (0x200, 0x210, "b")]
    assert lines_of(reader.read(b"x" * 50_000 + b" 300 10 lie")) == []
    assert lines_of(reader.read(b"\n")) == []


def stated(line: bytes) -> list[tuple[int, int, str]]:
    """Return the content of a line according to a regular expression for the format."""
    found = re.match(rb"(?:0x)?([0-9a-fA-F]{1,16})[ \t]+(?:0x)?([0-9a-fA-F]{1,16})[ \t]+(.*)", line[:MAX_LINE], re.S)
    name = found[3].rstrip(b" \t\r")[:MAX_NAME] if found else b""
    if found is None or not name:
        return []
    low, size = int(found[1], 16), int(found[2], 16)
    return [(low, low + size, name.decode("utf-8", "backslashreplace"))] if size and low + size < 1 << 64 else []


blanks = st.text(" \t", max_size=3) | st.just(" " * 12)
numbers = st.from_regex(r"(0x)?[0-9a-fA-F]{0,18}", fullmatch=True)
written = st.tuples(blanks, numbers, blanks, numbers, blanks, st.text("fg \t\r\0", max_size=5)).map("".join)
likely = st.from_regex(r"7f[0-9a-f]{4} [1-9]0? [a-z]{1,9} [0-9a-f ]{0,9}", fullmatch=True)
texts = st.lists(st.binary(max_size=30) | (written | likely).map(str.encode), max_size=30).map(b"\n".join)


@given(st.lists(texts, max_size=4))
def test_any_bytes_say_what_their_lines_say_one_by_one(pieces: list[bytes]) -> None:
    diagnostics = Diagnostics()
    reader = PerfMapReader(diagnostics)
    found = [line for piece in pieces for line in lines_of(reader.read(piece))]
    lines = b"".join(pieces).split(b"\n")[:-1]
    assert found == [each for line in lines for each in stated(line)]
    assert diagnostics.counts["perf_map_line_invalid"] == sum(bool(line) and not stated(line) for line in lines)


def test_lines_over_the_bound_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_map, "MAX_LINES", 3)
    diagnostics = Diagnostics()
    reader = PerfMapReader(diagnostics)
    assert len(lines_of(reader.read(b"1 1 a\n2 1 b\n"))) == 2
    assert lines_of(reader.read(b"3 1 c\n4 1 d\n")) == [(3, 4, "c")]
    assert diagnostics.counts["perf_map_too_many_lines"] == 1


def watched(path: Path) -> GrowingFile:
    return GrowingFile(partial(open_below, "", str(path), follow=False), frozenset({os.geteuid()}))


def test_growing_file_gives_its_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "map"
    file = watched(path)
    assert file.read_appended() == (b"", False)
    path.write_bytes(b"one\n")
    assert file.read_appended() == (b"one\n", False)
    with path.open("ab") as more:
        more.write(b"two\n")
    assert file.read_appended() == (b"two\n", False)
    assert file.read_appended() == (b"", False)


def test_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "map"
    file = watched(path)
    path.write_bytes(b"one\ntwo\n")
    file.read_appended()
    path.write_bytes(b"1\n")
    assert file.read_appended() == (b"1\n", True)
    path.write_bytes(b"9\nlonger than before\n")
    assert file.read_appended() == (b"9\nlonger than before\n", True)
    path.unlink()
    assert file.read_appended() == (b"", False)
    path.write_bytes(b"other file\n")
    assert file.read_appended() == (b"other file\n", True)


def test_links_pipes_and_files_of_others_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"100 10 secret\n")
    link = tmp_path / "link"
    link.symlink_to(secret)
    assert watched(link).read_appended() == (b"", False)
    os.mkfifo(tmp_path / "pipe")
    assert watched(tmp_path / "pipe").read_appended() == (b"", False)
    assert watched(secret).read_appended() == (b"100 10 secret\n", False)
    assert GrowingFile(partial(open_below, "", str(secret)), frozenset({os.geteuid() + 1})).read_appended() == (
        b"",
        False,
    )


def test_map_that_an_earlier_process_of_the_same_pid_has_left_is_not_read() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        path = Path(f"/tmp/perf-{process.pid}.map")
        path.write_bytes(b"100 10 f\n")
        try:
            assert perf_map_head(process.pid, 1 << 20) == b"100 10 f\n"
            before = time.time() - 60
            os.utime(path, (before, before))
            assert perf_map_head(process.pid, 1 << 20) == b""
            path.write_bytes(b"200 20 g\n")
            assert perf_map_head(process.pid, 5) == b"200 2"
        finally:
            path.unlink()
            process.kill()


def test_map_that_is_written_anew_while_recorded_names_each_time(tmp_path: Path) -> None:
    """Rewrite the map, as some agents do: removed lines apply until then, and their replacements since then."""
    path = tmp_path / "map"
    code = PerfMapCode(watched(path), Diagnostics())
    space = AddressSpace(1, 1, 0, (), lambda avma, size: b"", "")

    def look(before_ns: int, now_ns: int) -> None:
        code.update(CodeScan(space, X86_64, before_ns, now_ns, ()))

    path.write_text("1000 100 first\n2000 100 stays\n")
    look(ALWAYS, 100)
    path.write_text("2000 100 stays\n1080 100 second\n")
    look(100, 200)
    with path.open("a") as more:
        more.write("3000 10 late\n")
    look(200, 300)
    named = {
        (pc, time): span.value if (span := code.spans.find(pc, time)) else None
        for pc in (0x1010, 0x1090, 0x2010, 0x3001) for time in (50, 150, 250)
    }  # fmt: skip
    assert [named[0x1010, time] for time in (50, 150, 250)] == ["first", "first", None]
    assert [named[0x1090, time] for time in (50, 250)] == ["first", "second"]
    assert {named[0x2010, time] for time in (50, 150, 250)} == {"stays"}
    assert {named[0x3001, time] for time in (50, 150, 250)} == {"late"}


@pytest.mark.parametrize(("module", "bound"), [(byte_source, "MAX_READ"), (byte_source, "MAX_HELD")])
def test_file_over_a_bound_of_bytes_keeps_what_was_read_and_is_named(
    module: ModuleType, bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = byte_source.count_held_bytes() if module is byte_source else 0  # files of earlier tests
    monkeypatch.setattr(module, bound, before + 4000)
    monkeypatch.setattr(byte_source, "PIECE", 1024)
    path = tmp_path / "map"
    path.write_text("".join(f"{number:x}0 10 function{number}\n" for number in range(0x1000, 0x1400)))
    diagnostics = Diagnostics()
    code = PerfMapCode(watched(path), diagnostics)
    space = AddressSpace(1, 1, 0, (), lambda avma, size: b"", "")
    code.update(CodeScan(space, X86_64, ALWAYS, 100, ()))
    known = [code.spans.find(number << 4, 50) is not None for number in (0x1000, 0x13FF)]
    assert known == [True, False]
    assert diagnostics.counts["perf_map_too_large"] == 1
    assert [problem.text for problem in diagnostics.problems["[jit] perf map"]] != []


def test_room_of_a_map_that_is_dropped_is_free_again() -> None:
    before = byte_source.count_held_bytes()
    room = byte_source.ContentReservation("x")
    room.count_bytes(1000)
    room.count_bytes(500)
    assert byte_source.count_held_bytes() - before == 1500
    del room
    assert byte_source.count_held_bytes() == before
