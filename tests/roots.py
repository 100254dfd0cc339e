"""Private roots of other Debian suites, which tests/tools/roots defines and creates."""

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
    """Return the folder of a suite's root, which is created in CI only.

    The test is skipped, or fails in CI, without it.
    """
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
    """Return a command prefix that runs a command inside the root, with the host's /tmp, working directory and pid."""
    return [str(TOOLS / "debroot"), "run", str(root(suite))]


@cache
def may_make_roots() -> bool:
    if os.geteuid() == 0:
        return True
    sudo = shutil.which("sudo")
    if sudo is None:
        return False
    return subprocess.run([sudo, "-n", "true"], capture_output=True, timeout=20, check=False).returncode == 0
