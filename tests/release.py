"""Install what `make release` built, each as its users do, record with it, and check that nothing is left behind.

Debian packages run in new roots of their suites, the one file in a root of the oldest suite without Python, and the
wheel with each CPython that this machine has.

python -m tests.release build/release
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tooling.release.debian_package import install_packages

TOOLS = Path(__file__).parent / "tools"
ROOTS = Path(os.environ.get("PYPROF_TEST_ROOTS", "/var/cache/pyprof-tests"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Minor versions of CPython for which all packages that pyprof needs have wheels. orjson has none for 3.15 yet."""
OLDEST = "bullseye"
"""The oldest suite that is still served. Its glibc is 2.31."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
CHECK = """
set -e
check() { echo "  $1"; shift; "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }
"""
STEPS = """
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
LOOP_IN_SHELL = "i=0; while [ $i -lt 3000000 ]; do i=$((i + 1)); done"
ONE_FILE_STEPS = """
as_user() { chroot --userspec=1000:1000 / env "HOME=$HOME_OF_USER" /usr/bin/pyprof "$@"; }
check "there is no Python" sh -c '! ls /usr/bin/python* /usr/local/bin/python*'
check "two first starts at once" sh -c 'pyprof --version & pyprof --version && wait $!'
check "is unpacked once" sh -c 'set -- /var/cache/pyprof/*; [ $# = 1 ]'
check "for root alone" sh -c '[ $(stat -c %a%u /var/cache/pyprof) = 7000 ]'
check "records and writes a page" pyprof record -d 2 -o /tmp/a.html -- sh -c "$LOOP_IN_SHELL"
check "prints the stacks of a process" sh -c 'sleep 20 & pyprof dump -p $!'
check "records a file" pyprof record -d 1 -o /tmp/a.pyprof -- sh -c "$LOOP_IN_SHELL"
check "reads it again" sh -c 'pyprof report /tmp/a.pyprof | grep -q dash'
check "writes a configuration" sh -c 'pyprof agent --print-config >/tmp/agent.toml && mkdir /tmp/units'
check "has a service" pyprof agent install --config /tmp/agent.toml --unit-dir /tmp/units
check "that runs the file" grep -r ExecStart=/usr/bin/pyprof /tmp/units
mkdir -m 755 /home/user && chown 1000:1000 /home/user
HOME_OF_USER=/home/user
check "starts for a user" as_user --version
check "in their cache" test -x /home/user/.cache/pyprof/*/pyprof
check "a user records" as_user record -d 1 -o /tmp/b.html -- sh -c "$LOOP_IN_SHELL"
HOME_OF_USER=/nonexistent
mkdir -m 777 /tmp/pyprof-1000
check "refuses a folder of another user" sh -c '! chroot --userspec=1000:1000 / env HOME=/nonexistent pyprof --version'
rmdir /tmp/pyprof-1000
check "starts without a home" as_user --version
"""
ENTER = """
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"; mount -t tmpfs tmp "$1/tmp"
exec chroot "$1" /bin/sh -c "$2"
"""


def try_in_root(file: Path, suite: str, packages: str, place: str, steps: str) -> bool:
    """Run all steps with one file in a new root of a suite, and return True if each succeeded.

    Args:
        file: What `make release` built.
        suite: Suite of the root.
        packages: Packages of the root beyond the essential ones, with commas between them.
        place: Path of the file in the root.
        steps: Script for the shell of the root.
    """
    with tempfile.TemporaryDirectory(prefix="pyprof-release-") as folder:
        root = Path(folder, "root")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", suite, str(root)]
        subprocess.run(command, check=True)
        shutil.copy(file, root / place)
        spaces = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private"]
        program = [*spaces, "sh", "-c", ENTER, "sh", str(root), CHECK + steps]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
        env |= {"LOOP": LOOP, "LOOP_IN_SHELL": LOOP_IN_SHELL}
        return subprocess.run(program, check=False, env=env, timeout=600).returncode == 0


def pythons() -> Iterator[tuple[str, list[str]]]:
    """Yield the version of each CPython that is here, and the command that runs it: on PATH, of pyenv or in a root."""
    for version in PYTHONS:
        found = shutil.which(f"python{version}", path=f"{os.environ['PATH']}:/usr/bin")
        kept = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), *([Path(found)] if found else [])]
        roots = [path for path in sorted(ROOTS.glob("*-*")) if (path / f"usr/bin/python{version}").exists()]
        if kept:
            yield version, [str(kept[0])]
        elif roots:
            yield version, [str(TOOLS / "debroot"), "run", str(roots[0]), f"/usr/bin/python{version}"]
        else:
            print(f"no CPython {version} here")


def try_wheel(wheel: Path, version: str, python: list[str]) -> bool:
    """Install a wheel for one CPython, record a program with it, and return True if that succeeded."""
    with tempfile.TemporaryDirectory(prefix="pyprof-release-") as folder:
        install_packages([str(wheel)], version, platform.machine(), Path(folder, "site"))
        start = f"import sys; sys.path.insert(0, {folder + '/site'!r}); from pyprof_start import main; main()"
        page = Path(folder, "a.collapsed")
        command = [*python, "-c", start, "record", "-d", "2", "-o", str(page), "--", python[-1], "-c", LOOP]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        works = done.returncode == 0 and page.exists() and "<module>" in page.read_text()
        print(f"  CPython {version}: {'records' if works else done.stdout + done.stderr}", flush=True)
        return works


def main(folder: str) -> int:
    """Try all files for this machine, and return the exit status."""
    machine = platform.machine()
    packages = sorted(Path(folder).glob(f"pyprof_*_{MACHINES[machine]}.deb"))
    wheels = sorted(Path(folder).glob(f"*_{machine}.whl"))
    if not packages or not wheels:
        print(f"no packages of this machine in {folder}: make release")
        return 1
    results = []
    for wheel in wheels:
        print(wheel.name, flush=True)
        results += [try_wheel(wheel, version, python) for version, python in pythons()]
    for file in Path(folder).glob(f"pyprof-{machine}"):
        print(file.name, flush=True)
        results.append(try_in_root(file, OLDEST, "coreutils", "usr/bin/pyprof", ONE_FILE_STEPS))
    for package in packages:
        print(package.name, flush=True)
        suite = package.name.split("~")[1].split("_")[0]
        results.append(try_in_root(package, suite, "python3,adduser", "root/pyprof.deb", STEPS))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
