"""Tests of programs, threads and files whose names are not valid text or contain control characters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

ODD = b"sp;in \xff\x1b[31m\n\xc3\xbc"
SOURCE = "int main(void) { volatile unsigned long x = 0; for (;;) x++; }"


@pytest.fixture(scope="module")
def odd_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    need("gcc")
    folder = tmp_path_factory.mktemp("odd")
    (folder / "spin.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-o", folder / "spin", folder / "spin.c"], check=True, timeout=60)
    odd = os.path.join(os.fsencode(folder), ODD)
    shutil.copy(os.fsencode(folder / "spin"), odd)
    return odd


@pytest.fixture
def odd_process(odd_file: bytes) -> Iterator[int]:
    process = subprocess.Popen([odd_file])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def pyprof(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pyprof", *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("suffix", ["html", "speedscope.json", "collapsed", "pb.gz"])
def test_odd_names_are_written_in_every_format(odd_process: int, tmp_path: Path, suffix: str) -> None:
    summary = tmp_path / "summary.json"
    out = tmp_path / f"a.{suffix}"
    options = ["--full-paths", "-o", str(out), "--summary", str(summary)]
    for seconds in ("0.3", "3", "12"):  # until the program has run, on a busy machine
        done = pyprof("record", "-p", str(odd_process), "-d", seconds, *options)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size
    paths = [module["path"] for module in orjson.loads(summary.read_bytes())["modules"]]
    assert any(path.endswith("sp;in \\udcff\x1b[31m\nü") for path in paths), paths


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_odd_names_do_not_reach_the_terminal_as_they_are(odd_process: int, encoding: str) -> None:
    for command in (["dump", "--full-paths", "-p"], ["doctor"]):
        done = pyprof(*command, str(odd_process), PYTHONIOENCODING=encoding)
        assert b"Traceback" not in done.stderr, done.stderr
        assert b"\x1b" not in done.stdout
        assert b"sp;in \\udcff\\x1b[31m\\n" in done.stdout


def test_odd_names_are_json(odd_process: int, odd_file: bytes) -> None:
    done = pyprof("dump", "--json", "-p", str(odd_process), PYTHONIOENCODING="ascii")
    assert orjson.loads(done.stdout)["exe"].endswith("sp;in \\udcff\x1b[31m\nü"), done.stderr
    done = pyprof("inspect", odd_file, "--json", PYTHONIOENCODING="ascii")
    assert orjson.loads(done.stdout)["file"].endswith("sp;in \\udcff\x1b[31m\nü"), done.stderr
