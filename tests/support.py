"""Helpers for all tests: required tools, skips, and builds of test programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

PROGRAMS = Path(__file__).parent / "programs"
_First = TypeVar("_First")
_Second = TypeVar("_Second")

PACKAGES = {
    "gcc": "gcc libc6-dev",
    "g++": "g++",
    "gdb": "gdb",
    "eu-stack": "elfutils",
    "readelf": "binutils",
    "objdump": "binutils",
    "gdb-multiarch": "gdb-multiarch",
    "gcore": "gdb",
    "musl-gcc": "musl-tools",
    "x86_64-w64-mingw32-g++": "g++-mingw-w64-x86-64-win32",
    "node": "nodejs",
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "luajit": "luajit",
    "lli": "llvm",
    "perl": "perl",
    "php": "php-cli",
    "lua5.4": "lua5.4",
    "perf": "linux-perf",
    "debuginfod": "debuginfod",
    "sqlite3": "sqlite3",
    "chromium-headless-shell": "chromium-headless-shell",
    "go": "golang-go",
    "rustc": "rustc",
    "clang": "clang",
    "llvm-strip": "llvm",
    "nm": "binutils",
    "strip": "binutils",
    "objcopy": "binutils",
    "addr2line": "binutils",
    "c++filt": "binutils",
    "ld.gold": "binutils",
    "ld.lld": "lld",
    "clang++": "clang",
    "llvm-symbolizer": "llvm",
    "yaml2obj": "llvm",
    "dwz": "dwz",
    "xz": "xz-utils",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mkswap": "util-linux",
    "swapon": "mount",
    "bash": "bash",
    "strace": "strace",
    "llvm-dwarfdump": "llvm",
    "llvm-readelf": "llvm",
    "qemu-arm": "qemu-user",
    "qemu-x86_64": "qemu-user",
    "qemu-aarch64": "qemu-user",
    "qemu-s390x": "qemu-user",
    "qemu-ppc64le": "qemu-user",
    "qemu-riscv64": "qemu-user",
    "i686-linux-gnu-gcc": "gcc-i686-linux-gnu libc6-dev-i386-cross libc6-i386",
    "x86_64-linux-gnux32-gcc": "gcc-x86-64-linux-gnux32 linux-libc-dev-x32-cross libc6-dev-x32-cross",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "s390x-linux-gnu-gcc": "gcc-s390x-linux-gnu libc6-dev-s390x-cross",
    "powerpc64le-linux-gnu-gcc": "gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross",
    "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
    "arm-linux-gnueabihf-g++": "g++-arm-linux-gnueabihf",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "s390x-linux-gnu-g++": "g++-s390x-linux-gnu",
    "powerpc64le-linux-gnu-g++": "g++-powerpc64le-linux-gnu",
    "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    "riscv64-linux-gnu-g++": "g++-riscv64-linux-gnu",
    "qemu-system-aarch64": "qemu-system-arm",
    "gdbserver": "gdbserver",
    "clickhouse-server": "clickhouse-server",
    "qemu-system-arm": "qemu-system-arm",
    "arm-linux-gnueabihf-as": "binutils-arm-linux-gnueabihf",
    "arm-linux-gnueabihf-ld": "binutils-arm-linux-gnueabihf",
    "arm-linux-gnueabihf-nm": "binutils-arm-linux-gnueabihf",
    "arm-linux-gnueabihf-readelf": "binutils-arm-linux-gnueabihf",
    "arm-linux-gnueabihf-objdump": "binutils-arm-linux-gnueabihf",
    "arm-linux-gnueabihf-objcopy": "binutils-arm-linux-gnueabihf",
}
"""Debian packages that provide each tool."""
OF_POWER_CUTS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "debugfs": "e2fsprogs",
}
"""Debian packages of the tools of tests/survival/power.py, which no test runs."""


BUILDS = "PYPROF_TEST_BUILDS"
"""Environment variable with the folder of this run's builds (tests/conftest.py)."""

only_units = False
"""Whether only unit tests run (pytest -m unit)."""


def need(tool: str) -> str:
    """Return the path of a tool. If it is missing, fail in CI and skip elsewhere with the name of its package."""
    if only_units:
        pytest.fail(f"a unit test needs nothing but Python, not {tool}: name the kind of its file in pytestmark")
    path = shutil.which(tool)
    if path is None:
        missing(f"needs {tool}: apt-get install {(PACKAGES | OF_POWER_CUTS).get(tool, tool)}")
    assert path is not None
    return path


def missing(sentence: str) -> None:
    """Skip the test, or fail it in CI. Tests skip in no other way."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def pairs(first: Sequence[_First], second: Sequence[_Second]) -> list[tuple[_First, _Second]]:
    """Return all pairs of two parameters' values, or in CI the shortest list in which each value occurs."""
    if not os.environ.get("CI") or not first or not second:
        return list(product(first, second))
    return [(first[n % len(first)], second[n % len(second)]) for n in range(max(len(first), len(second)))]


def name_of(value: object) -> str | None:
    """Return the name of a test's parameter for the test's id, or None to leave the choice to pytest."""
    return getattr(value, "name", None)


@contextmanager
def busy_loops(count: int = 4) -> Iterator[None]:
    """Run this many busy loops of normal priority, each in a separate process and session."""
    # a loop ends with its parent, so that a killed test run leaves none behind
    loop = "import os; parent = os.getppid(); print(flush=True)\nwhile os.getppid() == parent: sum(range(10**6))"
    command = [sys.executable, "-c", loop]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) for _ in range(count)]
    try:
        for process in loops:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in loops:
            process.kill()
        for process in loops:
            process.communicate()


def build(source: Path, output: Path, *flags: str, compiler: str = "gcc") -> Path:
    """Compile a test program, or reuse the result of the same command in this run.

    A failure shows the compiler's output.
    """
    command = [need(compiler), *flags, str(source), *[f for f in flags if f.startswith("-l")]]
    made = Path(os.environ[BUILDS]) / _digest(
        command, [source, *(Path(flag) for flag in flags if flag[0] != "-"), *source.parent.glob("*.h")]
    )
    if not made.exists():
        part = made.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        part.rename(made)
    shutil.copy(made, output)
    return output


def go_cache() -> str:
    """Return the folder in which Go keeps compiled packages, so that a run compiles its library once."""
    return str(Path(os.environ[BUILDS]) / "go")


def _digest(command: list[str], files: list[Path]) -> str:
    """Return a digest of a command and the contents of these files, on which a build depends."""
    said = sha256(os.getcwd().encode())
    for word in command:
        said.update(word.encode() + b"\0")
    for path in files:
        if path.is_file():
            said.update(path.read_bytes())
    return said.hexdigest()
