"""Programs of newer Debian suites, in the private roots of the tests.

`tests/tools/roots SUITE` makes one, as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

_TOOLS = Path(__file__).parent.parent / "tests" / "tools"


@cache
def _root(suite: str) -> Path | None:
    done = subprocess.run([_TOOLS / "roots", "--there", suite], capture_output=True, text=True, timeout=60, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def has(suite: str, program: str) -> bool:
    root = _root(suite)
    return os.geteuid() == 0 and bool(shutil.which("nsenter")) and root is not None and (root / program[1:]).exists()


def run_in(suite: str) -> list[str]:
    """Return a prefix that runs a command inside a root. Its folder under /tmp is visible there, and its pid is the
    same.
    """
    return [str(_TOOLS / "debroot"), "run", str(_root(suite))]


def in_root_of(pid: int) -> list[str]:
    """Return a prefix that lets a command see the files that a process sees."""
    return ["nsenter", "-t", str(pid), "-m", "-r"]


def austin() -> list[str]:
    """Return the command of austinp, in a newer root if libc is older than the 2.38 that it needs."""
    path = shutil.which("austinp") or "austinp"
    new = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) >= (2, 38)  # type: ignore[union-attr]
    return [path] if new or not has("trixie", "/bin/sh") else [*run_in("trixie"), path]
