"""Programs of newer Debian suites, which run in private root folders that the tests use.

The command `tests/tools/roots SUITE`, run by root, makes one.
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
    """Return a command prefix that runs a command inside a root folder. The working folder under /tmp is visible in it,
    and the command keeps its pid.
    """
    return [str(_TOOLS / "debroot"), "run", str(_root(suite))]


def in_root_of(pid: int) -> list[str]:
    """Return a command prefix that lets a command see the files that a process sees."""
    return ["nsenter", "-t", str(pid), "-m", "-r"]


def austin() -> list[str]:
    """Return the command of austinp. It runs in a newer root folder if the machine's libc is older than 2.38, which it
    needs.
    """
    path = shutil.which("austinp") or "austinp"
    new = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) >= (2, 38)  # type: ignore[union-attr]
    return [path] if new or not has("trixie", "/bin/sh") else [*run_in("trixie"), path]
