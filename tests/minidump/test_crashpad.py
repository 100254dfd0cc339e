"""Tests of dumps of Crashpad's own handler, which Debian's chromium provides."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pyprof.cli.main import run
from tests.minidump.support import dump, functions, trusts
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.system]

HANDLERS = ("/usr/lib/chromium/chrome_crashpad_handler",)
CRASH = ["crash_3", "crash_2", "crash_1", "main"]


def crashed(folder: Path) -> tuple[Path, Path]:
    """Let Crashpad's handler dump a crashing program, and return the paths of the dump and of the program."""
    handler = next((path for path in HANDLERS if os.path.exists(path)), None)
    if handler is None:
        missing("needs Crashpad's handler: apt-get install chromium")
    program = build(PROGRAMS / "crashpad_client.c", folder / "crashpad_client", "-O2", "-g", "-pthread")
    database = folder / "database"
    database.mkdir()
    done = subprocess.run(
        [str(program), str(handler), str(database)], capture_output=True, text=True, timeout=120, check=False
    )
    dumps = list(database.rglob("*.dmp"))
    if not dumps and "ptrace" in done.stderr:
        pytest.skip("ptrace is forbidden here")
    assert len(dumps) == 1, (done.returncode, done.stderr)
    return dumps[0], program


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return crashed(tmp_path_factory.mktemp("crashpad"))


def test_stacks_of_all_threads_are_those_of_the_program(made: tuple[Path, Path]) -> None:
    path, program = made
    found = dump(path)
    assert found["exe"] == str(program)
    assert found["crash"]["reason"] == "SIGSEGV SEGV_MAPERR"
    first, second = found["threads"]
    assert (first["state"], first["tid"]) == ("crashed", found["crash"]["tid"])
    assert first["name"] == program.name[:15]
    assert functions(first)[:4] == CRASH
    assert (first["end"], second["end"]) == ("root", "root")
    assert "parked" in functions(second)
    assert "thread_main" in functions(second)


def test_stack_by_a_symbol_file_alone_is_the_same(made: tuple[Path, Path], tmp_path: Path) -> None:
    path, program = made
    store = tmp_path / "symbols"
    assert run(["symbols", str(program), "--store", str(store), "-q"]) == 0
    by_file = dump(path)["threads"][0]
    kept = program.rename(tmp_path / "elsewhere")
    try:
        first = dump(path, "--symbols", str(store))["threads"][0]
    finally:
        kept.rename(program)
    assert functions(first)[:4] == CRASH
    assert trusts(first)[1:5] == ["breakpad"] * 4
    for ours, theirs in zip(first["frames"], by_file["frames"], strict=False):
        assert (ours["pc"], ours["function"]) == (theirs["pc"], theirs["function"])
        assert ours["registers"] == theirs["registers"]
        assert (ours["file"], ours["line"]) == (theirs["file"], theirs["line"])
