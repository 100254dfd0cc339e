"""Fixtures that start the C programs of tests/programs, each of which is built once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.collectors.linux import libc
from tests.collectors.targets import Program, start
from tests.support import PROGRAMS, build

Start = Callable[..., Program]


@pytest.fixture(autouse=True)
def as_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let machine code wait for sampling times, because no other thread of the test needs the GIL."""
    monkeypatch.setattr(libc, "_readv", libc._patient_readv)


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("programs")
    built: dict[str, Path] = {}

    def binary(name: str) -> Path:
        if name not in built:
            built[name] = build(PROGRAMS / f"{name}.c", folder / name, "-O1", "-pthread")
        return built[name]

    return binary


@pytest.fixture
def program(binaries: Callable[[str], Path]) -> Iterator[Start]:
    """Yield a function that starts a C program, for example program("c_spin", "2"), and waits for its first line.

    The programs are killed at the end of the test. The argument `prefix` is a command prefix.
    """
    started: list[Program] = []

    def run(name: str, *words: str, wait_ready: bool = True, prefix: tuple[str, ...] = ()) -> Program:
        target = start([*prefix, str(binaries(name)), *words], wait_ready)
        started.append(target)
        return target

    yield run
    for target in started:
        target.process.kill()
        target.process.wait(10)
        for stream in (target.process.stdin, target.process.stdout):
            if stream:
                stream.close()


@pytest.fixture
def child() -> Iterator[Callable[[list[str]], subprocess.Popen[bytes]]]:
    """Yield a function that starts any command, for example child(["sleep", "9"]).

    The processes are killed at the end.
    """
    started: list[subprocess.Popen[bytes]] = []

    def run(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(10)
