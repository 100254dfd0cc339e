"""One-shot tasks of `pyprof report` for a worker: names of a profile's frames, and the instructions of a function.

Each task is a value that is sent to the worker (session/worker/messages.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.model.profile import ModuleInfo, Profile
from pyprof.objfile.base import ObjectFile
from pyprof.records import dataclass, replace
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.resymbolize import Places, add_names, find_object_file
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.tools.disassembly import MAX_BYTES, Instruction, disassemble

_BEYOND = 64
"""Number of bytes of code that are shown after the last sampled address of a function whose end is unknown."""


@dataclass(frozen=True, slots=True)
class NamesOf:
    """A one-shot task that returns a profile with names from files, in one piece.

    Attributes:
        profile: The profile, without samples.
        places: Places of the files.
        seconds: Maximum time for source lines and inlined functions.
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
    """A one-shot task that returns the instructions of a function, in one piece. Addresses are relative to the file's
    base.

    Attributes:
        info: The module.
        places: Places of the files.
        start: Start of the function.
        last: Last address that was sampled in it.
    """

    info: ModuleInfo
    places: Places
    start: int
    last: int

    def pieces(self, diagnostics: Diagnostics) -> Iterator[FunctionCode]:
        """Yield the machine instructions of a function.

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
    """Return (start, end) in the file of the function that contains an address."""
    table = SymbolTable(read_symbol_sources(file, lambda: None).rows)
    (row,) = table.find(np.array([start], np.uint64)).tolist()
    if row >= 0 and int(table.start[row]) == start and last < int(table.end[row]):
        return start, int(table.end[row])
    return (start if 0 <= last - start < MAX_BYTES else last), last + _BEYOND
