"""Core files of crashing programs.

The kernel writes native cores, or gdb if core_pattern prevents that. qemu-user writes those of other architectures.
"""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.core.emulated import core_of_crash
from tests.support import PROGRAMS, build, missing, need

FLAGS = ("-O2", "-g", "-pthread")


@dataclass(frozen=True)
class Target:
    """An architecture for which cores are created.

    Attributes:
        prefix: Prefix of the cross compiler, "" for native.
        emulator: Program that runs the code, "" for the kernel.
        writes: Whether the emulator writes cores. Otherwise they are created through its gdb stub.
        flags: Further flags of the compiler.
        sysroot: Folder of the libraries, "" for those of the machine.
    """

    arch: str
    prefix: str
    emulator: str
    writes: bool = True
    flags: tuple[str, ...] = ()

    @property
    def compiler(self) -> str:
        return f"{self.prefix}gcc"

    @property
    def sysroot(self) -> str:
        return f"/usr/{self.prefix[:-1]}" if self.emulator else ""


TARGETS = {
    target.arch: target
    for target in (
        Target("x86_64", "", ""),
        Target("i386", "i686-linux-gnu-", ""),
        Target("aarch64", "aarch64-linux-gnu-", "qemu-aarch64"),
        Target("arm", "arm-linux-gnueabihf-", "qemu-arm"),
        Target("s390x", "s390x-linux-gnu-", "qemu-s390x"),
        Target("ppc64le", "powerpc64le-linux-gnu-", "qemu-ppc64le"),
        Target("riscv64", "riscv64-linux-gnu-", "qemu-riscv64", False, ("-fasynchronous-unwind-tables",)),
    )
}


@dataclass(frozen=True)
class Core:
    """A core file and its program."""

    path: Path
    program: Path
    sysroot: str

    @property
    def options(self) -> list[str]:
        """Options with which pyprof finds all files."""
        return ["--exe", str(self.program), "--sysroot", self.sysroot] if self.sysroot else []


@cache
def folder() -> Path:
    """Return the folder of all programs and cores, which is removed at the end of the run."""
    path = Path(tempfile.mkdtemp(prefix="pyprof-cores-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def program(arch: str, source: str, *flags: str) -> Path:
    name = "-".join([source.removesuffix(".c"), arch, *(flag.strip("-").replace("=", "") for flag in flags)])
    return build(
        PROGRAMS / source, folder() / name, *FLAGS, *TARGETS[arch].flags, *flags, compiler=TARGETS[arch].compiler
    )


@cache
def crash(arch: str, source: str, *flags: str, arguments: tuple[str, ...] = ()) -> Core:
    """Return the core of a program that crashes."""
    target, path = TARGETS[arch], program(arch, source, *flags)
    where = Path(tempfile.mkdtemp(dir=folder()))
    return Core(run_to_core(target, [str(path), *arguments], where), path, target.sysroot)


def run_to_core(target: Target, command: Sequence[str], where: Path) -> Path:
    if target.emulator:
        command = [need(target.emulator), "-L", target.sysroot, *command]
        if not target.writes:
            core_of_crash(command, where / "core")
            return where / "core"
    elif not kernel_writes_here():
        return run_in_gdb(command, where)

    def with_cores() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    done = subprocess.run(
        command, cwd=where, preexec_fn=with_cores, capture_output=True, text=True, timeout=120, check=False
    )
    cores = list(where.glob("qemu_*.core" if target.emulator else "core*"))
    if not cores and "Exec format error" in done.stderr:
        missing("needs a kernel that runs 32-bit programs")
    assert done.returncode < 0 or done.returncode > 128, done.stderr
    assert len(cores) == 1, (done.returncode, done.stderr, os.listdir(where))
    for other in where.iterdir():  # includes the kernel's core of the emulator itself
        if other != cores[0]:
            other.unlink()
    return cores[0]


def kernel_writes_here() -> bool:
    """Return True if sysctl kernel.core_pattern makes the kernel write cores into the working directory."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    return not pattern.startswith("|") and "/" not in pattern


def run_in_gdb(command: Sequence[str], where: Path) -> Path:
    """Run a program in gdb until it crashes, and return the core that gdb writes."""
    path = where / "core"
    words = ["handle SIGUSR1 nostop noprint pass", "run", f"generate-core-file {path}"]
    options = [word for each in words for word in ("-ex", each)]
    done = subprocess.run(
        [need("gdb"), "-nx", "-batch", *options, "--args", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert path.exists(), done.stdout + done.stderr
    return path
