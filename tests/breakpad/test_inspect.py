"""Tests of `pyprof inspect` on symbol files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pyprof.cli.main import run
from tests.support import PROGRAMS, build

pytestmark = pytest.mark.system

WINDOWS = """\
MODULE windows x86 5A9832E5287241C1838ED98914E9B7FF1 test_app.pdb
FUNC 1000 40 8 first
1000 40 5 1
PUBLIC 2000 0 last
STACK WIN 4 1000 40 3 1 8 4 c 0 1 $eip .raSearch ^ = $esp .raSearch 4 + =
STACK WIN 0 2000 10 0 0 0 c 10 0 0 1
STACK CFI INIT nonsense
"""


def inspect(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(["inspect", *words]) == code
    return capfd.readouterr().out


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build a program and return the paths of its ELF file and its symbol file."""
    folder = tmp_path_factory.mktemp("inspected")
    path = build(PROGRAMS / "core_threads.c", folder / "threads", "-O2", "-g", "-pthread")
    assert run(["symbols", str(path), "-o", str(folder / "threads.sym"), "-q"]) == 0
    return path, folder / "threads.sym"


def test_overview_says_what_it_is_of_and_counts_records(
    program: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    text = inspect(capfd, str(program[1]))
    assert "symbol file of threads (Linux), id " in text
    (found,) = objects(inspect(capfd, str(program[1]), "--json"))
    records = found["records"]
    assert isinstance(records, dict)
    content = program[1].read_text().splitlines()
    for kind in ("FUNC", "PUBLIC", "FILE", "STACK CFI INIT"):
        assert records[kind] == sum(line.startswith(f"{kind} ") for line in content)
    assert found["functions"] == {"breakpad": records["STACK CFI INIT"]}


def test_rows_of_a_function_are_those_of_the_elf_file(
    program: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    elf, symbols = program
    of_elf = objects(inspect(capfd, str(elf), "--function", "crash_2", "--source", "eh_frame", "--json"))
    of_symbols = objects(inspect(capfd, str(symbols), "--function", "crash_2", "--json"))
    assert [row["text"] for row in of_symbols] == [row["text"] for row in of_elf]
    assert len(of_symbols) > 2
    pc = str(of_symbols[1]["start"])
    assert objects(inspect(capfd, str(symbols), "--pc", pc, "--json")) == [of_symbols[1]]


def test_compared_with_the_tables_nothing_differs(
    program: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    elf, symbols = program
    assert run(["inspect", str(elf), "--compare", "eh_frame,breakpad", "--symbols", str(symbols), "--json"]) in (0, 3)
    captured = capfd.readouterr()
    assert "0 differ" in captured.err
    assert "0 only in the second" in captured.err


def test_stack_win_is_shown_as_it_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test_app.sym.gz"
    path.write_bytes(gzip.compress(WINDOWS.encode()))
    rows = objects(inspect(capfd, str(path), "--rows", "--json"))
    assert [(row["source"], row["start"], row["end"]) for row in rows] == [
        ("stack_win", "0x1000", "0x1040"),
        ("stack_win", "0x2000", "0x2010"),
    ]
    assert rows[0]["text"] == ("frame data: $eip .raSearch ^ = $esp .raSearch 4 + = (locals 12, saved 4, parameters 8)")
    assert rows[1]["text"] == "fpo: locals 16, saved 12, parameters 0, pushes ebp"
    assert inspect(capfd, str(path), "--function", "first").startswith("stack_win 0x1000 first\n")
    assert "malformed STACK CFI INIT" in inspect(capfd, str(path))


def test_file_that_is_neither_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.sym"
    path.write_text("MODULE nothing\n")
    assert run(["inspect", str(path)]) == 1
    assert "not a Breakpad symbol file" in capfd.readouterr().err
    path.write_text("MODULE Linux mips 5A9832E5287241C1838ED98914E9B7FF1 x\n")
    assert run(["inspect", str(path)]) == 1
    assert "no rules for mips" in capfd.readouterr().err
