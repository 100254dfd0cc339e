"""The Debian packages of `make release` in new roots of their suites: install, record, remove, purge.

python -m tests.release build/release
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
STEPS = """
set -e
check() { echo "  $1"; shift; "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }
gone() { for path; do if [ -e "$path" ]; then echo "$path is left"; return 1; fi; done; }
before=$(find /usr /etc /var/lib -path /var/lib/dpkg -prune -o -print | sort | sha256sum)
check "installs" dpkg -i /root/pyprof.deb
check "says its version" pyprof --version
check "has a group" getent group pyprof
check "has a configuration without errors" pyprof agent --config /etc/pyprof/agent.toml --check
check "records" pyprof record -d 2 -o /tmp/a.html -- python3 -c "$LOOP"
check "writes a page" grep -q "<module>" /tmp/a.html
check "prints the stacks of a process" sh -c 'sleep 20 & pyprof dump -p $!'
check "installs again" dpkg -i /root/pyprof.deb
check "removes" dpkg -r pyprof
check "leaves no program" gone /usr/lib/pyprof /usr/bin/pyprof
check "keeps the configuration" test -e /etc/pyprof/agent.toml
check "purges" dpkg -P pyprof
check "leaves nothing" gone /etc/pyprof /var/lib/pyprof
after=$(find /usr /etc /var/lib -path /var/lib/dpkg -prune -o -print | sort | sha256sum)
check "has changed no other path" test "$before" = "$after"
"""
LOOP = "import time\nend = time.time() + 3\nwhile time.time() < end:\n    sum(range(1000))"
ENTER = """
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"; mount -t tmpfs tmp "$1/tmp"
exec chroot "$1" /bin/sh -c "$2"
"""


def try_package(package: Path, suite: str) -> bool:
    """Run all steps with one package in a new root of its suite, and return True if each succeeded."""
    with tempfile.TemporaryDirectory(prefix="pyprof-release-") as folder:
        root = Path(folder, "root")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,adduser", suite, str(root)]
        subprocess.run(command, check=True)
        (root / "root" / "pyprof.deb").write_bytes(package.read_bytes())
        spaces = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private"]
        program = [*spaces, "sh", "-c", ENTER, "sh", str(root), STEPS]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "LOOP": LOOP}
        return subprocess.run(program, check=False, env=env, timeout=600).returncode == 0


def main(folder: str) -> int:
    """Try each package of this machine, and return the exit status."""
    packages = sorted(Path(folder).glob(f"pyprof_*_{MACHINES[platform.machine()]}.deb"))
    if not packages:
        print(f"no packages of this machine in {folder}: make release")
        return 1
    failed = False
    for package in packages:
        suite = package.name.split("~")[1].split("_")[0]
        print(package.name, flush=True)
        failed |= not try_package(package, suite)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
