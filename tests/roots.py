"""Private roots of other Debian suites: tests/tools/roots says what is in them and where they are, and makes them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support import missing, need

TOOLS = Path(__file__).parent / "tools"
CACHE = Path(os.environ.get("PYPROF_TEST_ROOTS", "/var/cache/pyprof-tests"))


@cache
def root(suite: str) -> Path:
    """The folder of a suite's root: made in CI, elsewhere only found. Skips (in CI: fails) where it cannot be had."""
    need("apt-get")
    need("unshare")
    if not may_make_roots():
        missing("needs root: programs of other Debian suites run in private roots")
    options = [] if os.environ.get("CI") else ["--there"]
    done = subprocess.run([TOOLS / "roots", *options, suite], capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        missing(done.stderr.strip())
    return Path(done.stdout.strip())


def run_in(suite: str) -> list[str]:
    """What to put before a command: it runs inside the root; /tmp, the current folder and its pid are ours."""
    return [str(TOOLS / "debroot"), "run", str(root(suite))]


@cache
def may_make_roots() -> bool:
    if os.geteuid() == 0:
        return True
    sudo = shutil.which("sudo")
    if sudo is None:
        return False
    return subprocess.run([sudo, "-n", "true"], capture_output=True, timeout=20, check=False).returncode == 0
