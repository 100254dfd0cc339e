"""Tests that `inspect`, `symbols` and `doctor` parse files in a worker: the main process reads none of them."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.cli import main
from pyprof.collectors.linux import process_sandbox
from pyprof.errors import PyprofError
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.runtime_code.runtime_processes import RuntimeProcesses
from pyprof.session.worker import worker_process
from tests import warm
from tests.cli.test_inspect_unwind_tables import SOURCE
from tests.support import missing, need

pytestmark = pytest.mark.system

QUESTIONS = {
    "overview": ("inspect", "FILE"),
    "rows": ("inspect", "FILE", "--rows"),
    "function": ("inspect", "FILE", "--function", "middle", "--json"),
    "differences": ("inspect", "FILE", "--compare", "sframe,eh_frame"),
    "symbol file": ("inspect", "SYMBOLS"),
    "packed symbol file": ("inspect", "SYMBOLS.gz", "--rows"),
    "symbols": ("symbols", "FILE"),
    "doctor": ("doctor", "PID"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a program with debug information, with its symbol file as text and compressed."""
    folder = tmp_path_factory.mktemp("examined")
    (folder / "a.c").write_text(SOURCE)
    command = [need("gcc"), "-g", "-O2", "-Wa,--gsframe", "-fno-ipa-cp", "-fno-inline", "a.c", "-o", "a"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    text = warm.run("symbols", str(folder / "a")).stdout
    (folder / "a.sym").write_text(text)
    (folder / "a.sym.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture(scope="module")
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child.pid
        child.communicate(b"\n", timeout=30)


def asked(question: str, folder: Path, sleeper: int) -> list[str]:
    known = {"FILE": str(folder / "a"), "SYMBOLS": str(folder / "a.sym"), "SYMBOLS.gz": str(folder / "a.sym.gz")}
    known["PID"] = str(sleeper)
    return [known.get(word, word) for word in QUESTIONS[question]]


@pytest.mark.parametrize("question", QUESTIONS)
def test_process_that_prints_parses_nothing(
    question: str,
    folder: Path,
    sleeper: int,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    command = [*asked(question, folder, sleeper), "--no-sandbox"]  # of a fork only: a task is imported before
    expected = warm.run(*command)
    monkeypatch.setattr(
        worker_process, "forked", worker_process.spawned
    )  # a forked worker would inherit the patches below
    monkeypatch.setattr(ElfFile, "__init__", lambda *_: pytest.fail("it parses an object file"))
    monkeypatch.setattr(SymbolFile, "__init__", lambda *_: pytest.fail("it parses a symbol file"))
    monkeypatch.setattr(ImageStore, "image", lambda *_: pytest.fail("it asks what a module's file has"))
    monkeypatch.setattr(RuntimeProcesses, "process", lambda *_: pytest.fail("it reads code made at run time"))
    code = main.run(command)
    said = capfdbinary.readouterr().out.decode()
    size = re.compile(r"\d+ MB")  # memory of a process that may still be starting
    assert (code, size.sub("MB", said)) == (expected.returncode, size.sub("MB", expected.stdout))
    assert len(said.splitlines()) > 3


@pytest.mark.parametrize("question", ["overview", "rows", "differences", "symbols", "doctor"])
def test_worker_is_confined_where_that_is_asked(
    question: str, folder: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []

    def refused(confined: bool) -> worker_process.Worker:
        started.append(confined)
        raise PyprofError("no worker here")

    monkeypatch.setattr(worker_process, "forked", refused)
    command = asked(question, folder, sleeper)
    assert [main.run([*command, *option]) for option in ((), ("--no-sandbox",), ("--sandbox",))] == [1, 1, 1]
    assert started == [False, False, True]


@pytest.mark.parametrize("question", QUESTIONS)
def test_worker_without_rights_says_the_same(question: str, folder: Path, sleeper: int) -> None:
    try:
        process_sandbox.build_filter(os.uname().machine, os.getpid(), ())
    except NotImplementedError:
        missing("needs x86-64 or AArch64")
    command = asked(question, folder, sleeper)
    plain, confined = warm.run(*command, "--no-sandbox"), warm.run(*command, "--sandbox")
    assert (confined.returncode, confined.stdout) == (plain.returncode, plain.stdout)
    assert confined.stderr == plain.stderr
    assert len(plain.stdout.splitlines()) > 3
