"""Builds of ARM programs and assembly."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pyprof.model.arch import ARM
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.exidx_section import Exidx, open_exidx
from tests.support import need

HEAD = ".syntax unified\n.arch armv7-a\n.fpu neon\n.text\n"


def assemble(text: str, folder: Path, name: str = "program") -> Path:
    """Return a shared library of assembly text, in which functions keep their order."""
    source, thing, library = (folder / f"{name}.{end}" for end in ("s", "o", "so"))
    source.write_text(HEAD + text)
    commands = (
        [need("arm-linux-gnueabihf-as"), "-mfpu=neon", str(source), "-o", str(thing)],
        [need("arm-linux-gnueabihf-ld"), "-shared", "--no-merge-exidx-entries", str(thing), "-o", str(library)],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    return library


def function(name: str, body: str, mode: str = "arm") -> str:
    """Return assembly of a function with its body between .fnstart and .fnend."""
    return (
        f".{mode}\n.global {name}\n.type {name}, %function\n{name}: .fnstart\n{body}\n.fnend\n.size {name}, .-{name}\n"
    )


def source_of(path: Path) -> Exidx:
    source = open_exidx(ElfFile.open(str(path)), ARM, Diagnostics())
    assert source is not None
    return source


def symbols(path: Path) -> dict[str, int]:
    """Return the addresses of symbols by name, without the Thumb bit."""
    text = subprocess.run(
        [need("arm-linux-gnueabihf-nm"), str(path)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    found = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 3:
            found[parts[2]] = int(parts[0], 16) & ~1
    return found
