"""Tests of children that a recording of a running process does not follow: their processor time is reported."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.importers.registry import load
from tests.cli.support import pyprof
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

WORK = "for (1..4000000) { $x++ }"


@pytest.fixture
def parent() -> Iterator[int]:
    """Yield the pid of a shell that does all work in children."""
    script = f"echo; while :; do {need('perl')} -e '{WORK}'; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def record(pid: int, folder: Path, *options: str, seconds: int = 2) -> tuple[dict[str, Any], str]:
    summary = folder / "summary.json"
    command = ("record", "-p", str(pid), "-d", str(seconds), "-o", str(folder / "a.html"), "--summary", str(summary))
    done = pyprof(*command, *options, timeout=120)
    assert done.returncode == (0 if json.loads(summary.read_text())["samples"] else 1), done.stderr
    return json.loads(summary.read_text()), done.stderr


def test_time_of_children_that_were_not_followed_is_told(parent: int, tmp_path: Path) -> None:
    for seconds in (2, 6, 18):  # until children had a processor, on a busy machine
        summary, said = record(parent, tmp_path, seconds=seconds)
        if summary["not_followed"]["children_s"] > 0.3:
            break
    assert summary["not_followed"]["children_s"] > 5 * summary["not_followed"]["own_s"]
    assert 0.3 < summary["not_followed"]["children_s"] < seconds + 0.5
    assert "Children used" in said
    assert "-s records them" in " ".join(said.split())


def test_nothing_was_sampled_beside_busy_children_and_they_are_named_as_the_reason(tmp_path: Path) -> None:
    script = f"{need('perl')} -e 'print 1; $| = 1; print 1; 1 while 1'; :"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(1)
            summary, said = record(process.pid, tmp_path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert summary["samples"] == 0
    words = " ".join(said.split())
    assert (
        "nothing was sampled: 100 % of the processor time was its children's, which were not followed: add -s" in words
    )
    assert "no thread was running" not in words


def test_nothing_is_told_of_children_that_were_followed(parent: int, tmp_path: Path) -> None:
    for seconds in (2, 6, 18):
        summary, said = record(parent, tmp_path, "-s", seconds=seconds)
        if summary["samples"] > 20:
            break
    assert summary["samples"] > 20
    assert summary["not_followed"] == {"own_s": 0.0, "children_s": 0.0}
    assert "Children used" not in said


def test_compilers_of_a_build_are_told_apart_by_their_source_files(tmp_path: Path) -> None:
    compiler, make = need("gcc"), need("make")
    sources = [f"src/part{at}.c" for at in range(4)]
    (tmp_path / "src").mkdir()
    for at, source in enumerate(sources):
        functions = (
            f"int f{at}_{n}(int a) {{ for (int k = 0; k < a; k++) a += k * {n} ^ a; return a; }}" for n in range(100)
        )
        (tmp_path / source).write_text("\n".join(functions))
    rule = f"%.o: %.c\n\t{compiler} -O2 -c -o $@ $<\n"
    (tmp_path / "Makefile").write_text(f"all: {' '.join(sources).replace('.c', '.o')}\n{rule}")
    saved = tmp_path / "make.pyprof"
    done = pyprof("record", "-o", str(saved), "--", make, "-j2", "-C", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "cc1 src/part" in done.stderr, "the table of processes"
    profile = load(saved)
    names = {thread.process for thread in profile.threads}
    assert {f"cc1 {source}" for source in sources} <= names
    formats = {name: tmp_path / f"make.{name}" for name in ("pb.gz", "speedscope.json", "html")}
    for path in formats.values():
        assert pyprof("report", str(saved), "--processes", "-o", str(path)).returncode == 0
    assert b"cc1 src/part1.c" in gzip.decompress(formats["pb.gz"].read_bytes())
    assert "cc1 src/part1.c" in formats["speedscope.json"].read_text()
    page = formats["html"].read_text().split('id="profile"')[1]
    assert b"cc1 src/part1.c" in gzip.decompress(base64.b64decode(page[page.index(">") + 1 : page.index("<")]))
