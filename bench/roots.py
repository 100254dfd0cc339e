"""Programs of newer Debian suites, in private roots.

`tests/tools/debroot SUITE FOLDER PACKAGE...` makes one, as root.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOTS = Path(os.environ.get("PYPROF_TEST_ROOTS", "/var/cache/pyprof-tests"))
_DEBROOT = Path(__file__).parent.parent / "tests" / "tools" / "debroot"


def has(suite: str, program: str) -> bool:
    return os.geteuid() == 0 and (ROOTS / suite / program.lstrip("/")).exists() and bool(shutil.which("nsenter"))


def run_in(suite: str) -> list[str]:
    """What to put before a command: it and its folder under /tmp are inside the root, its pid is ours."""
    return [str(_DEBROOT), "run", str(ROOTS / suite)]


def in_root_of(pid: int) -> list[str]:
    """What to put before a command that shall see the files that a process sees."""
    return ["nsenter", "-t", str(pid), "-m", "-r"]


def austin() -> list[str]:
    """austinp of the PATH; where libc is older than the 2.38 that it needs, in a root that is newer."""
    path = shutil.which("austinp") or "austinp"
    new = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) >= (2, 38)  # type: ignore[union-attr]
    return [path] if new or not has("trixie", "/bin/sh") else [*run_in("trixie"), path]
