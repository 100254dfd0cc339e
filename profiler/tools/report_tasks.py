"""One-shot tasks of `pyprof report` for a worker: the names of a profile's frames, and the instructions of a function.

objdump of binutils disassembles machine code. It gets only the bytes of one function and an architecture. It never gets
the object file, which may be foreign: only pyprof's readers read that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np

from pyprof.collectors.linux.process_sandbox import create_memory_file
from pyprof.errors import PyprofError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.arch import Arch
from pyprof.model.profile import ModuleInfo, Profile
from pyprof.objfile.base import ObjectFile
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.resymbolize import Places, add_names, find_object_file
from pyprof.symbolize.symbol_table import SymbolTable

MAX_BYTES = 1 << 18
"""Maximum size in bytes of the code of one function that is disassembled."""
_OBJDUMP_TIMEOUT_S = 20.0
_LINE = re.compile(r"\s*([0-9a-f]+):\t(.*)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction as text. Its address is the one that the file states (svma)."""

    address: int
    text: str


def disassemble(file: ObjectFile, start: int, end: int) -> list[Instruction]:
    """Return the instructions between two addresses in a file.

    Raises:
        PyprofError: objdump is not installed or does not support the architecture.
    """
    arch = file.arch
    data = bytes(file.at_svma(start, min(end - start, MAX_BYTES)))
    return _by_objdump(data, start, arch) if arch is not None and data else []


def _by_objdump(data: bytes, start: int, arch: Arch) -> list[Instruction]:
    program = shutil.which("objdump")
    if program is None:
        raise PyprofError("objdump is not installed", "apt-get install binutils")
    fd = create_memory_file("code")
    try:
        os.write(fd, data)
        command = [program, "-D", "-b", "binary", "-w", "--no-show-raw-insn", f"--adjust-vma={start:#x}"]
        order = "-EL" if arch.byteorder == "little" else "-EB"
        command += ["-m", arch.bfd, order, f"/proc/self/fd/{fd}"]
        done = subprocess.run(command, capture_output=True, pass_fds=[fd], timeout=_OBJDUMP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PyprofError(f"objdump cannot be run: {error}") from None
    finally:
        os.close(fd)
    lines = map(_LINE.fullmatch, done.stdout.decode(errors="replace").splitlines())
    found = [Instruction(int(line[1], 16), line[2].strip()) for line in lines if line]
    if not found:
        raise PyprofError(f"objdump does not know the code of {arch.name}", "apt-get install binutils-multiarch")
    return found


_BEYOND = 64
"""Number of bytes of code that are disassembled after the last sampled address of a function whose end is unknown."""


@dataclass(frozen=True, slots=True)
class NamesOf:
    """A one-shot task for a worker that returns a profile with names from files, in one piece.

    Attributes:
        profile: The profile, without samples.
        places: Files, folders and copies of root directories in which the files are searched.
        seconds: Maximum time in seconds for source lines and inlined functions.
    """

    profile: Profile
    places: Places
    seconds: float

    def pieces(self, diagnostics: Diagnostics) -> Iterator[Profile]:
        yield add_names(self.profile, self.places, self.seconds)


def drop_samples(profile: Profile) -> Profile:
    return replace(
        profile,
        time_ns=profile.time_ns[:0],
        stack=profile.stack[:0],
        thread=profile.thread[:0],
        values=profile.values[:0],
        state=None,
        cpu=None,
    )


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """The machine instructions of a function.

    Attributes:
        base: Lowest loaded address in the file, None if no file of the module was found.
        instructions: The instructions.
    """

    base: int | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class CodeOf:
    """A one-shot task for a worker that returns the instructions of a function, in one piece. Addresses are relative to
    the file's base.

    Attributes:
        info: The module that contains the function.
        places: Files, folders and copies of root directories in which the file is searched.
        start: Start address of the function.
        last: Highest sampled address in the function.
    """

    info: ModuleInfo
    places: Places
    start: int
    last: int

    def pieces(self, diagnostics: Diagnostics) -> Iterator[FunctionCode]:
        """Yield the machine instructions of the function, as the only piece of the result.

        Raises:
            PyprofError: objdump is not installed or does not support the architecture.
        """
        file = find_object_file(self.info, self.places)
        if file is None:
            yield FunctionCode(None, ())
            return
        base = file.min_vaddr
        extent = _extent(file, base + self.start, base + self.last)
        yield FunctionCode(base, tuple(disassemble(file, *extent)))


def _extent(file: ObjectFile, start: int, last: int) -> tuple[int, int]:
    """Return (start, end) of the function that contains an address, as addresses in the file."""
    table = SymbolTable(read_symbol_sources(file, lambda: None).rows)
    (row,) = table.find(np.array([start], np.uint64)).tolist()
    if row >= 0 and int(table.start[row]) == start and last < int(table.end[row]):
        return start, int(table.end[row])
    return (start if 0 <= last - start < MAX_BYTES else last), last + _BEYOND
