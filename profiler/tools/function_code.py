"""What `report` lets a worker read of files: names for a profile's frames, and the instructions of a function.

Both are errands (session/worker/messages.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.model.profile import ModuleInfo, Profile
from pyprof.objfile.base import ObjectFile
from pyprof.records import dataclass, replace
from pyprof.symbolize.again import Places, named, object_file
from pyprof.symbolize.elf_symtab import symbol_sources
from pyprof.symbolize.symbols import SymbolTable
from pyprof.tools.disassembly import MOST_BYTES, Instruction, disassembled

_BEYOND = 64
"""Bytes that are shown after the last address of a function whose end is not known."""


@dataclass(frozen=True, slots=True)
class NamesOf:
    """An errand of one piece: the profile without samples, with the names that files at these places have.

    seconds: most for source lines and inlined functions.
    """

    profile: Profile
    places: Places
    seconds: float

    def pieces(self, diagnostics: Diagnostics) -> Iterator[Profile]:
        yield named(self.profile, self.places, self.seconds)


def without_samples(profile: Profile) -> Profile:
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
    """base: svma of the file's first byte that is loaded, None where no file is the module's."""

    base: int | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class CodeOf:
    """An errand of one piece. start: where the function begins; last: the last address that was sampled in it. Both are
    from the file's base on.
    """

    info: ModuleInfo
    places: Places
    start: int
    last: int

    def pieces(self, diagnostics: Diagnostics) -> Iterator[FunctionCode]:
        """Raises PyprofError: there is no objdump, or it does not know the code."""
        file = object_file(self.info, self.places)
        if file is None:
            yield FunctionCode(None, ())
            return
        base = file.min_vaddr
        extent = _extent(file, base + self.start, base + self.last)
        yield FunctionCode(base, tuple(disassembled(file, *extent)))


def _extent(file: ObjectFile, start: int, last: int) -> tuple[int, int]:
    """svma where the function that holds the address begins and ends."""
    table = SymbolTable(symbol_sources(file, lambda: None).rows)
    (row,) = table.find(np.array([start], np.uint64)).tolist()
    if row >= 0 and int(table.start[row]) == start and last < int(table.end[row]):
        return start, int(table.end[row])
    return (start if 0 <= last - start < MOST_BYTES else last), last + _BEYOND
