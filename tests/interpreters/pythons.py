"""Interpreters of the tests: of the machine, of pyenv, and of other Debian suites in private roots."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.roots import run_in
from tests.support import missing

PROGRAMS = Path(__file__).parent / "programs"
IN_ROOTS = (("bullseye", "3.9"), ("trixie", "3.13"), ("sid", "3.14"), ("sid", "3.15"))


@dataclass(frozen=True)
class Python:
    """An interpreter.

    Attributes:
        name: Name in test ids.
        path: Path, inside the suite's root if there is one.
        minor: Minor version.
        suite: Debian suite, or "" for an interpreter outside of a private root.
        own: Whether the user named it in PYPROF_TEST_PYTHONS.
    """

    name: str
    path: str
    minor: int
    suite: str = ""
    own: bool = False

    @property
    def command(self) -> list[str]:
        """Command that starts the interpreter. The test is skipped, or fails in CI, if it is missing."""
        if self.suite and os.geteuid() != 0:
            missing("needs root: interpreters of other Debian suites run in private roots")
        return [*(run_in(self.suite) if self.suite else []), self.path]


def pythons() -> list[Python]:
    """Return the interpreters of the tests from 3.8 on, and those in PYPROF_TEST_PYTHONS (paths separated by colons).

    Elsewhere than in CI these are all interpreters. In CI these are one for each minor version, of several
    distributors, because builds of one version have the same layout.
    """
    if not os.environ.get("CI"):
        return every_python()
    chosen: dict[object, Python] = {}
    for python in every_python():
        chosen.setdefault(python.name if python.own else python.minor, python)
    return list(chosen.values())


def every_python() -> list[Python]:
    """Return all available interpreters from 3.8, and those in PYPROF_TEST_PYTHONS."""
    found = []
    for own in filter(None, os.environ.get("PYPROF_TEST_PYTHONS", "").split(":")):
        say = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
        said = subprocess.run([own, "-c", say], capture_output=True, text=True, timeout=60, check=True).stdout.split()
        name = f"own-3.{said[0]}{'t' if said[1] == '1' else ''}"
        found.append(Python(name, own, int(said[0]), own=True))
    for path in sorted(Path("/usr/bin").glob("python3.*")):
        numbered = re.fullmatch(r"python3\.(\d+)", path.name)
        if numbered:
            found.append(Python(f"debian-{path.name}", str(path), int(numbered[1])))
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in sorted(versions.glob("3.*/bin/python")):
        minor = int(path.parent.parent.name.split(".")[1])
        if minor >= 8:
            found.append(Python(f"pyenv-{path.parent.parent.name}", str(path), minor))
    for suite, version in IN_ROOTS:
        found.append(Python(f"{suite}-{version}", f"/usr/bin/python{version}", int(version.split(".")[1]), suite))
    return sorted(found, key=lambda python: (python.minor, python.name))


EACH = pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
OF_LAYOUTS = list(
    {p.name if p.own else p.minor: p for p in pythons() if p.own or p.minor in (8, 10, 11, 12, 15)}.values()
)
"""One interpreter for each layout of frames, and the newest one."""
KINDS = pytest.mark.parametrize("python", OF_LAYOUTS, ids=lambda p: p.name)
OLDEST_AND_NEWEST = pytest.mark.parametrize(
    "python", OF_LAYOUTS[:: max(1, len(OF_LAYOUTS) - 1)] if os.environ.get("CI") else OF_LAYOUTS, ids=lambda p: p.name
)
"""The interpreters with the oldest and the newest layout of frames, which CI uses where the version hardly matters."""
SOME = pytest.mark.parametrize(
    "python",
    [p for p in pythons() if p.suite in ("", "sid") and not p.name.startswith("pyenv")][:2],
    ids=lambda p: p.name,
)
"""One interpreter without and one with a perf trampoline."""
HERE = Python("here", sys.executable, sys.version_info[1])


@cache
def shared_folder() -> Path:
    """Return a folder below /tmp for this test run, which private roots can read, too."""
    folder = Path(mkdtemp(prefix="pyprof-programs-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def running(
    python: Python,
    program: str | Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program on an interpreter with its output piped, and kill it at the end.

    The argument `cwd` is a folder that private roots can read, too.
    """
    command = python.command
    path = shutil.copy(PROGRAMS / program, shared_folder()) if python.suite else str(PROGRAMS / program)
    process = subprocess.Popen(
        [*command, str(path), *arguments],
        stdout=subprocess.PIPE,
        stdin=stdin,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8", **(env or {})},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
