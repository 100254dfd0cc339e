"""Private Debian roots with the toolchains that write SFrame (tests/tools/debroot)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support import missing, need

ROOTS = Path(os.environ.get("PYPROF_TEST_ROOTS", "/var/cache/pyprof-tests"))
SUITES = ("bookworm", "trixie", "sid")


def need_roots() -> None:
    """Skips (in CI: fails) where the roots cannot be made; outside CI also where they were not made yet."""
    need("gcc")
    need("apt-get")
    sudo = shutil.which("sudo")
    if os.geteuid() != 0 and not (sudo and may_sudo(sudo)):
        missing("needs root: the toolchains of other Debian suites run in private roots")
    if not os.environ.get("CI") and not all((ROOTS / suite / ".debroot" / "done").exists() for suite in SUITES):
        missing("needs the toolchains of other Debian suites: tests/unwind/sframe/build_fixtures.sh /tmp/any gets them")


def may_sudo(sudo: str) -> bool:
    return subprocess.run([sudo, "-n", "true"], capture_output=True, timeout=20, check=False).returncode == 0
