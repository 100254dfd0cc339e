"""Builds of tests/programs/remote_ladder.c for each architecture, each built once in a run."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.roots import root
from tests.support import PROGRAMS, build, need

RUNGS = tuple(f"r_{n:02}" for n in range(1, 13))
"""Function names of the ladder from root to leaf."""

COMMON = ("-O2", "-fomit-frame-pointer")
ARM = "arm-linux-gnueabihf-"
BARE = ("-mcpu=cortex-m3", "-mthumb", "-mfloat-abi=soft", "-fno-pie", "-no-pie", "-nostdlib", "-Wl,--build-id=none")
"""Flags with which the compiler for Linux makes a program without a system."""
A64 = "aarch64-linux-gnu-"
S390 = "s390x-linux-gnu-"
PPC = "powerpc64le-linux-gnu-"
RISCV = "riscv64-linux-gnu-"
FRAMES = ("-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-fno-asynchronous-unwind-tables", "-static")

BARE_FRAMES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer")
"""Flags for code without unwind tables and without frame pointers."""


def cfi(*sections: str) -> str:
    """Return a flag that selects unwind tables in programs with ladder.h or remote_ladder.h."""
    return f'-DCFI_SECTIONS="{", ".join(sections)}"'


ALL_CFI = cfi(".eh_frame", ".debug_frame", ".sframe")
BOTH_CFI = cfi(".eh_frame", ".debug_frame")


@dataclass(frozen=True)
class Recipe:
    """The build recipe and emulator of the ladder for an architecture.

    Attributes:
        prefix: Prefix of the cross compiler.
        flags: Flags of the compiler.
        emulator: qemu-user's emulator.
        entry: Size of a breakpoint's instruction in bytes, 2 for Thumb.
        skip: Distance in bytes from a function's symbol to its local entry point.
        new_binutils: Whether the assembler and linker are those of Debian sid.
    """

    prefix: str
    flags: tuple[str, ...]
    emulator: str
    entry: int = 4
    skip: int = 0
    new_binutils: bool = False


RECIPES = {
    "a32": Recipe(ARM, ("-marm", "-funwind-tables", "-static"), "qemu-arm"),
    "t32": Recipe(ARM, ("-mthumb", "-funwind-tables", "-static"), "qemu-arm", 2),
    "a32_dwarf": Recipe(ARM, ("-marm", "-g", "-static"), "qemu-arm"),
    "t32_dwarf": Recipe(ARM, ("-mthumb", "-g", "-static"), "qemu-arm", 2),
    "a32_dynamic": Recipe(ARM, ("-marm", "-funwind-tables", "-no-pie"), "qemu-arm"),
    "a64": Recipe(A64, ("-static", "-mbranch-protection=none"), "qemu-aarch64"),
    "a64_pac": Recipe(A64, ("-static", "-mbranch-protection=standard"), "qemu-aarch64"),
    "a64_all": Recipe(A64, ("-static", "-mbranch-protection=none", ALL_CFI), "qemu-aarch64"),
    "a64_pac_all": Recipe(A64, ("-static", "-mbranch-protection=standard", ALL_CFI), "qemu-aarch64"),
    "a64_fp": Recipe(A64, (*FRAMES, "-mbranch-protection=none"), "qemu-aarch64"),
    "a64_bare": Recipe(A64, (*BARE_FRAMES, "-static", "-mbranch-protection=none"), "qemu-aarch64"),
    "a64_pac_bare": Recipe(A64, (*BARE_FRAMES, "-static", "-mbranch-protection=standard"), "qemu-aarch64"),
    "a64_pac_fp": Recipe(A64, (*FRAMES, "-mbranch-protection=standard"), "qemu-aarch64"),
    "s390x_all": Recipe(S390, ("-static", BOTH_CFI), "qemu-s390x", 2),
    "s390x_sframe": Recipe(S390, ("-static", "-Wa,--gsframe"), "qemu-s390x", 2, new_binutils=True),
    "s390x_fp": Recipe(S390, ("-static", "-mbackchain", "-fno-asynchronous-unwind-tables"), "qemu-s390x", 2),
    "ppc64le_all": Recipe(PPC, ("-static", BOTH_CFI), "qemu-ppc64le", skip=8),
    "riscv64_all": Recipe(RISCV, ("-static", "-fasynchronous-unwind-tables", BOTH_CFI), "qemu-riscv64", 2),
    "riscv64_wide": Recipe(
        RISCV, ("-static", "-march=rv64g", "-fasynchronous-unwind-tables", BOTH_CFI), "qemu-riscv64"
    ),
    "riscv64_fp": Recipe(
        RISCV, ("-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-static"), "qemu-riscv64", 2
    ),
    "a64_dynamic": Recipe(A64, ("-no-pie",), "qemu-aarch64"),
    "s390x": Recipe(S390, ("-static",), "qemu-s390x", 2),
    "s390x_dynamic": Recipe(S390, ("-no-pie",), "qemu-s390x", 2),
}


@cache
def folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="pyprof-remote-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def ladder(name: str) -> Path:
    """Return the ladder program with this name in RECIPES."""
    recipe = RECIPES[name]
    flags = [*COMMON, *recipe.flags]
    if recipe.new_binutils:
        flags.append(f"-B{new_binutils(recipe.prefix)}")
    return build(PROGRAMS / "remote_ladder.c", folder() / name, *flags, compiler=recipe.prefix + "gcc")


@cache
def new_binutils(prefix: str) -> Path:
    """Return a folder with Debian sid's `as` and `ld` for gcc's -B."""
    sid, tools = root("sid"), folder() / f"{prefix}new"
    tools.mkdir()
    for tool in ("as", "ld"):
        path = tools / tool
        loader = f"{sid}/lib64/ld-linux-x86-64.so.2 --library-path {sid}/usr/lib/x86_64-linux-gnu"
        path.write_text(f'#!/bin/sh\nexec {loader} {sid}/usr/bin/{prefix}{tool} "$@"\n')
        path.chmod(0o755)
    return tools


@cache
def bare(*more: str) -> Path:
    """Build the Cortex-M program, whose only unwind table is .ARM.exidx, with further flags."""
    flags = (*BARE, "-funwind-tables", "-ffreestanding", *COMMON)
    script = ("-T", str(PROGRAMS / "remote_bare.ld"))
    return build(
        PROGRAMS / "remote_bare.c",
        folder() / f"bare{''.join(more)}.elf",
        *flags,
        *more,
        *script,
        compiler=f"{ARM}gcc",
    )


@cache
def symbol(path: Path, name: str) -> int:
    """Return the address of a function in the file, without the Thumb bit."""
    text = subprocess.run([need("nm"), str(path)], capture_output=True, text=True, timeout=60, check=True).stdout
    for line in text.splitlines():
        parts = line.split()
        if parts[-1] == name and len(parts) == 3:
            return int(parts[0], 16) & ~1
    raise AssertionError(f"{path} has no {name}")
