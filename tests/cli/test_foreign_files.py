"""Tests of files that a target names or creates: pyprof never blocks on them or shows what the target cannot read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import BUSY, pyprof, python
from tests.support import missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

NOBODY = 65534
CLAIM = """
import sys
code = "print(flush=True); __import__('time').sleep(600)"
exec(compile(code, sys.argv[1], "exec"))
"""
"""Python code that claims to come from the file named on the command line."""


@contextlib.contextmanager
def claiming(name: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run Python as another user, sleeping in line 1 of a file."""
    if os.geteuid() != 0:
        missing("needs root: a target of another user")
    switch = [need("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = [*switch, os.path.realpath(sys.executable), "-c", CLAIM, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def shown(name: str, cwd: Path) -> str | None:
    """Return the source line that dump shows for the frame that claims to be in this file."""
    with claiming(name, cwd) as process:
        done = pyprof("dump", "-p", str(process.pid), "--json")
    frames = [frame for thread in json.loads(done.stdout)["threads"] for frame in thread["frames"]]
    (source,) = [frame["source"] for frame in frames if frame["kind"] == "python" and frame["file"] == name]
    assert source is None or isinstance(source, str)
    return source


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that every user may enter. Those of pytest are private to this user."""
    path = Path("/var/tmp") / f"pyprof-test-{os.getpid()}"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_source_that_the_target_may_read_is_shown(folder: Path) -> None:
    (folder / "own.py").write_text("the line\n")
    assert shown(str(folder / "own.py"), folder) == "the line"
    (folder / "below").mkdir()
    assert shown("../own.py", folder / "below") == "the line"


@pytest.mark.parametrize("what", ["secret", "link", "hidden", "environ", "kmsg"])
def test_file_that_the_target_may_not_read_is_not_shown(what: str, folder: Path) -> None:
    names = {"environ": "/proc/self/environ", "kmsg": "/proc/kmsg", "hidden": str(folder / "shut" / "file")}
    (folder / "secret").write_text("the secret\n")
    (folder / "secret").chmod(0o600)
    (folder / "link").symlink_to("secret")
    (folder / "shut").mkdir(mode=0o700)
    (folder / "shut" / "file").write_text("the secret\n")
    assert shown(names.get(what, str(folder / what)), folder) is None


RECORD = ("record", "--mode", "wall", "-d", "1", "-f", "collapsed", "-p")


@pytest.mark.parametrize("arguments", [("doctor",), ("dump", "-p"), RECORD])
def test_pipe_in_the_place_of_a_perf_map_holds_nobody_up(arguments: tuple[str, ...], tmp_path: Path) -> None:
    output = ("-o", str(tmp_path / "out")) if arguments[0] == "record" else ()
    with python(BUSY) as target:
        planted = Path(f"/tmp/perf-{target.pid}.map")
        os.mkfifo(planted)
        try:
            done = pyprof(arguments[0], *output, *arguments[1:], str(target.pid), timeout=30)
        finally:
            planted.unlink()
    assert done.returncode == 0, done.stderr
    if output:
        assert sum(int(line.rpartition(" ")[2]) for line in (tmp_path / "out").read_text().splitlines()) > 0
