"""A test of SFRAME_F_FRAME_POINTER in a live program: functions without rows are walked by frame pointers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.support import pyprof
from tests.support import need

pytestmark = pytest.mark.system

COVERED = """
extern int uncovered(int);
__attribute__((noinline)) int leaf(int x) { for (volatile int n = x;; n++) ; return x; }
int main(void) { return uncovered(1) + 1; }
"""
UNCOVERED = """
extern int leaf(int);
__attribute__((noinline)) int uncovered(int x) { return leaf(x) + 1; }
"""
FLAGS_AT, FRAME_POINTER = 3, 2


@pytest.fixture(scope="module", params=[False, True], ids=["silent", "promised"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """Build a program in which leaf and main have SFrame rows and uncovered has no table.

    The test sets the section's flag, which gas never sets.
    """
    folder = tmp_path_factory.mktemp("promise")
    (folder / "covered.c").write_text(COVERED)
    (folder / "uncovered.c").write_text(UNCOVERED)
    keep = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-c"]
    for command in (
        [need("gcc"), *keep, "-Wa,--gsframe", "covered.c"],
        [need("gcc"), *keep, "-fno-asynchronous-unwind-tables", "uncovered.c"],
        [need("gcc"), "-o", "program", "covered.o", "uncovered.o"],
        [need("objcopy"), "--dump-section", ".sframe=rows", "program"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    rows = bytearray((folder / "rows").read_bytes())
    if request.param:
        rows[FLAGS_AT] |= FRAME_POINTER
    (folder / "rows").write_bytes(rows)
    subprocess.run([need("objcopy"), "--update-section", ".sframe=rows", "program"], cwd=folder, check=True, timeout=60)
    return folder / "program", request.param


def test_frame_records_are_followed_where_sframe_promises_them(program: tuple[Path, bool]) -> None:
    path, promised = program
    target = subprocess.Popen([str(path)])
    try:
        for _ in range(50):
            done = pyprof("dump", "-p", str(target.pid), "--json", "--unwind", "sframe")
            assert done.stdout, done.stderr
            frames = json.loads(done.stdout)["threads"][0]["frames"]
            if frames and frames[0]["function"] == "leaf":
                break
    finally:
        target.kill()
        target.wait()
    found = [(frame["function"], frame["trust"]) for frame in frames]
    assert found[:2] == [("leaf", "context"), ("uncovered", "sframe")]
    assert found[2:3] == ([("main", "fp")] if promised else [])
