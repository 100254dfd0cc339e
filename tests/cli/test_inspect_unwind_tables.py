"""Tests of `pyprof inspect`: overview, rows and comparison."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.support import one_sentence, pyprof
from tests.support import need

pytestmark = pytest.mark.system

KEYS = {
    *("start", "end", "source", "function_start", "cfa", "ra", "fp", "signal", "outermost", "slow", "repeat", "text"),
}
SOURCE = """
extern int other(int);
__attribute__((noinline)) int leaf(int x) { volatile int a[20]; a[x & 7] = x; return a[3]; }
__attribute__((noinline)) int middle(int x) { int y = leaf(x); return y + other(y); }
__attribute__((noinline, optimize("no-omit-frame-pointer"))) int framed(int x) { return middle(x) + 1; }
int other(int x) { return x * 3; }
int main(int argc, char **argv) { (void)argv; return framed(argc); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a program with SFrame, in the version of the host's assembler, and .eh_frame."""
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "a.c").write_text(SOURCE)
    subprocess.run(
        [need("gcc"), "-O2", "-Wa,--gsframe", "-fno-ipa-cp", "-fno-inline", "a.c", "-o", "a"],
        cwd=folder,
        check=True,
        timeout=60,
    )
    return folder / "a"


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_overview_counts_the_functions_of_each_source(program: Path) -> None:
    done = pyprof("inspect", str(program))
    assert done.returncode == 0, done.stderr
    assert "build-id" in done.stdout
    for source in ("sframe", "eh_frame"):
        (line,) = [line for line in done.stdout.splitlines() if line.split()[:1] == [source]]
        assert int(line.split()[1]) >= 5


def test_rows_of_a_function_are_algebra(program: Path) -> None:
    done = pyprof("inspect", str(program), "--rows", "--source", "eh_frame", "--function", "framed")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.startswith("eh_frame 0x")
    assert head.endswith(" framed")
    assert rows[0].endswith("cfa = sp + 8; ra = [cfa - 8]")
    assert any(row.endswith("cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]") for row in rows)


def test_json_is_one_object_a_row_with_the_stable_keys(program: Path) -> None:
    rows = objects(pyprof("inspect", str(program), "--rows", "--json").stdout)
    assert all(set(row) == KEYS for row in rows)
    assert {row["source"] for row in rows} == {"sframe", "eh_frame"}
    framed = [row for row in rows if row["cfa"] == "fp+16"]
    assert framed
    assert all((row["ra"], row["fp"], row["slow"]) == ("[cfa-8]", "[cfa-16]", False) for row in framed)


def test_pc_gives_the_one_row_of_each_source_that_covers_it(program: Path) -> None:
    rows = objects(pyprof("inspect", str(program), "--rows", "--json", "--function", "middle").stdout)
    at = str(rows[1]["start"])
    found = objects(pyprof("inspect", str(program), "--json", "--pc", at).stdout)
    assert sorted(str(row["source"]) for row in found) == ["eh_frame", "sframe"]
    assert all(int(str(row["start"]), 16) <= int(at, 16) < int(str(row["end"]), 16) for row in found)


def test_sframe_and_eh_frame_of_one_compiler_do_not_differ(program: Path) -> None:
    done = pyprof("inspect", str(program), "--compare", "sframe,eh_frame", "--json")
    assert [found for found in objects(done.stdout) if found["kind"] == "differ"] == []


def test_comparison_lists_what_only_one_source_covers(program: Path, tmp_path: Path) -> None:
    """Compare both tables: the crt files have .eh_frame and no SFrame."""
    done = pyprof("inspect", str(program), "--compare", "sframe,eh_frame")
    assert done.returncode == 3
    assert "only in eh_frame" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--function", "nobody"), 2, "no function"),
        (("--rows", "--source", "exidx"), 2, "has no exidx"),
        (("--compare", "eh_frame"), 2, "two sources"),
    ],
)
def test_impossible_questions_are_usage_errors(program: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = pyprof("inspect", str(program), *arguments)
    assert done.returncode == code
    assert says in one_sentence(done)


def test_file_that_is_not_elf_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"#!/bin/sh\n")
    done = pyprof("inspect", str(tmp_path / "a"))
    assert done.returncode == 1
    one_sentence(done)


@pytest.mark.parametrize("options", [(), ("--json",), ("--rows", "--source", "eh_frame")])
def test_file_that_was_cut_off_is_said_and_returned(options: tuple[str, ...], program: Path, tmp_path: Path) -> None:
    data = program.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-1])
    done = pyprof("inspect", str(tmp_path / "cut"), *options)
    assert done.returncode == 1
    assert "cut: cut off: 1 bytes are missing" in done.stderr
    (tmp_path / "cut").write_bytes(data + b"more")
    assert pyprof("inspect", str(tmp_path / "cut"), *options).returncode == 0


@pytest.mark.parametrize("command", [("inspect",), ("dump", "--core"), ("dump", "--minidump")])
@pytest.mark.parametrize("kind", ["folder", "pipe", "text"])
def test_thing_that_is_no_such_file_is_named_with_what_it_is(
    command: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "junk"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("junk\n")
    done = pyprof(*command, str(path), timeout=30)
    assert done.returncode == 1
    said = {"folder": "Is a directory", "pipe": "not a regular file", "text": "ot a"}
    if command[-1] == "--minidump":
        said["text"] = "neither a minidump"
    assert str(path) in one_sentence(done)
    assert said[kind] in done.stderr


def test_missing_file_is_said() -> None:
    assert "No such file" in one_sentence(pyprof("inspect", "/no/such/file"))
