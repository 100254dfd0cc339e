"""One-shot tasks of `pyprof inspect` and `pyprof report` for a worker.

For `inspect` these are the overview of a file, its rows, and differences between two sources; for `report` the names of
a profile's frames, and the instructions of a function. Each task is a value that is sent to the worker
(session/worker/messages.py). It contains only the names that the user gave. The results come in pieces, so that memory
does not grow with the file.

objdump of binutils shows machine code as instructions. It gets the bytes of one function and an architecture. It never
gets the object file, which may be foreign: only pyprof's readers read that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np

from pyprof.collectors.linux.confinement import create_memory_file
from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError, PyprofError, UsageError
from pyprof.model.arch import Arch
from pyprof.model.profile import ModuleInfo, Profile
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.breakpad.symbol_store import is_symbol_file
from pyprof.records import dataclass, replace
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.resymbolize import Places, add_names, find_object_file
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.tools.unwind_inspection import Difference, InspectedRow, Inspection, SymbolInspection

PIECE = 1 << 7
"""Number of rows or differences in one piece of a worker's result. A piece of this size needs no memory file; hundreds
may be in transit.
"""
WRONG_FILE = "FILE is a program, a shared library, an object file (.o), a separate debug file or a Breakpad symbol file"


@dataclass(frozen=True, slots=True)
class FileToInspect:
    """The file that `pyprof inspect` shows.

    Attributes:
        path: Path of an object file or a symbol file.
        symbols: Places that may have a symbol file for it.
    """

    path: str
    symbols: tuple[str, ...] = ()

    def open_file(self, diagnostics: Diagnostics) -> Inspection:
        """Open the file that `pyprof inspect` shows.

        Raises:
            UnsupportedArchitecture: There are no unwind rules for its machine.
            UsageError: `symbols` is given for a symbol file.
            PyprofError: The file cannot be read.
        """
        try:
            if not is_symbol_file(self.path):
                return Inspection(self.path, self.symbols, diagnostics)
            if self.symbols:
                raise UsageError(f"--symbols: {self.path} is a symbol file itself")
            return SymbolInspection(self.path, diagnostics)
        except OSError as error:
            raise PyprofError(f"{self.path}: {error.strerror}") from error
        except FormatError as error:
            raise PyprofError(f"{self.path}: {error.message}", WRONG_FILE) from error


@dataclass(frozen=True, slots=True)
class ListedSection:
    """A section of an inspected file. Its address is that in the file (svma)."""

    name: str
    addr: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FileOverview:
    """The overview of a file that `pyprof inspect` shows: sections, sources, counts.

    Attributes:
        name: Name of the file.
        arch: Name of the architecture.
        build_id: Build ID, "" if there is none.
        identity: See Inspection.
        sections: Sections of the file.
        records: See Inspection.
        functions: Number of functions that each source covers, None if its index is broken.
        problems: Descriptions of errors.
        missing: Number of bytes by which the file is truncated.
    """

    name: str
    arch: str
    build_id: str
    identity: str
    sections: tuple[ListedSection, ...]
    records: dict[str, int]
    functions: dict[str, int | None]
    problems: tuple[str, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class OverviewOf:
    """A one-shot task that returns the overview of a file for `pyprof inspect`, in one piece."""

    file: FileToInspect

    def pieces(self, diagnostics: Diagnostics) -> Iterator[FileOverview]:
        inspection = self.file.open_file(diagnostics)
        functions = {name: inspection.count_functions(name) for name in inspection.sources}
        yield FileOverview(
            inspection.name,
            inspection.arch.name,
            inspection.build_id,
            inspection.identity,
            tuple(ListedSection(s.name, s.addr, s.offset, s.size) for s in inspection.sections),
            inspection.records,
            functions,
            tuple(_problems(inspection)),
            inspection.missing,
        )


def _problems(inspection: Inspection) -> list[str]:
    wrong = [*inspection.broken.values(), *inspection.oddities]
    wrong += [f"{key} ({number})" for key, number in sorted(inspection.diagnostics.counts.items())]
    for problems in inspection.diagnostics.problems.values():
        wrong += [problem.text for problem in sorted(problems)]
    return wrong


@dataclass(frozen=True, slots=True)
class SomeRows:
    """A piece of the unwind rows of a file. The last piece has no rows but the fields from `sources` on.

    Attributes:
        rows: The rows.
        names: Names of the functions, by their start address in the file.
        sources: Names of the sources that were read.
        broken: Error of each broken source.
        missing: Number of bytes by which the file is truncated.
    """

    rows: tuple[InspectedRow, ...]
    names: dict[int, str]
    sources: tuple[str, ...] = ()
    broken: dict[str, str] | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class RowsOf:
    """A one-shot task that returns unwind rows of a file for `pyprof inspect`.

    Attributes:
        file: The file.
        source: Only rows of this source, "" for all.
        function: Only rows of this function, "" for all.
        pc: Only the row of this address in the file, None for all.
    """

    file: FileToInspect
    source: str = ""
    function: str = ""
    pc: int | None = None

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SomeRows]:
        inspection = self.file.open_file(diagnostics)
        names = [self.source] if self.source else inspection.row_sources
        ranges = self._ranges(inspection)
        rows = (row for row in inspection.read_rows(names, ranges) if self.pc is None or _holds(row, self.pc))
        for some in _in_pieces(self.file, rows):
            starts = {row.function_start for row in some} if ranges else ()
            yield SomeRows(some, {start: inspection.name_at(start) for start in starts})
        yield SomeRows((), {}, tuple(names), inspection.broken, inspection.missing)

    def _ranges(self, inspection: Inspection) -> list[tuple[int, int]] | None:
        """Return the (start, end) ranges of file addresses whose unwind rows are wanted, or None for the whole file."""
        if self.pc is not None:
            return [(self.pc, self.pc + 1)]
        if not self.function:
            return None
        ranges = inspection.find_functions(self.function)
        if not ranges:
            raise UsageError(f"{self.file.path} names no function {self.function!r}", "pyprof inspect FILE --pc 0x…")
        return ranges


def _holds(row: InspectedRow, svma: int) -> bool:
    at = row.function_start + (svma - row.function_start) % row.repeat if row.repeat else svma
    return row.start <= at < row.end


@dataclass(frozen=True, slots=True)
class SomeDifferences:
    """A piece of the differences between two unwind sources. The last piece has none, but states by how many bytes the
    file is truncated.
    """

    differences: tuple[Difference, ...]
    missing: int = 0


@dataclass(frozen=True, slots=True)
class DifferencesOf:
    """A one-shot task that returns the differences between two unwind sources of a file, given by name."""

    file: FileToInspect
    first: str
    second: str

    def pieces(self, diagnostics: Diagnostics) -> Iterator[SomeDifferences]:
        inspection = self.file.open_file(diagnostics)
        for some in _in_pieces(self.file, inspection.compare_sources(self.first, self.second)):
            yield SomeDifferences(some)
        yield SomeDifferences((), inspection.missing)


Item = TypeVar("Item")


def _in_pieces(file: FileToInspect, items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Yield rows or differences in tuples of at most PIECE.

    Raises:
        PyprofError: The file turns out to be broken.
    """
    rest = iter(items)
    try:
        while some := tuple(islice(rest, PIECE)):
            yield some
    except FormatError as error:
        raise PyprofError(f"{file.path}: {error.message}") from error


MAX_BYTES = 1 << 18
"""Maximum size in bytes of the code of one function that is disassembled."""
_OBJDUMP_TIMEOUT_S = 20.0
_LINE = re.compile(r"\s*([0-9a-f]+):\t(.*)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction as text. Its address is that in the file (svma)."""

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
