"""What was read of object files in order to name addresses. It outlives windows, address spaces and processes.

In: an Image. Out: FileNames, the same one for every process that has the file mapped. A file is known by its build-id
and its size, for a stripped copy has the build-id of the whole one; without a build-id by device, inode, size and time
of change. The cache is bounded in bytes: what was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Set
from functools import cached_property

from pyprof.diagnostics import Diagnostics
from pyprof.model.summary import NameCounts
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.foreign_path import Rights
from pyprof.objfile.images import Image
from pyprof.objfile.packages import Packages
from pyprof.records import dataclass, field
from pyprof.symbolize.breakpad import SymbolFileNames
from pyprof.symbolize.cython import CythonLines
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.dwarf.lines import SourceLines, SourcePlace
from pyprof.symbolize.elf_symtab import DEBUG_FILE, symbol_sources
from pyprof.symbolize.footprint import footprint
from pyprof.symbolize.kernel import KernelNames
from pyprof.symbolize.symbols import SymbolTable

MOST_BYTES = 256 << 20
"""Of all that is kept. libxul with its lines takes about 150 MB."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a file says of one svma. function: svma of the function's start, None if not known. source: innermost
    inlined function first, the last is the function itself.
    """

    system_name: str = ""
    function: int | None = None
    source: tuple[SourcePlace, ...] = ()


_NAMES_A_PART = 16


class FileNames:
    """Symbols, lines and inlined functions of one object file, read when first asked for.

    found: the answers so far, by svma. shown: demangled names, by name. broken: problems of its symbol table.
    may_have_lines: as far as is known without reading any.
    """

    def __init__(self, image: Image) -> None:
        sources = symbol_sources(image.file, lambda: image.debug)
        self.broken = [str(error) for error in sources.broken]
        self.table = SymbolTable(sources.rows)
        self.complete = sources.complete
        self.may_have_lines = has_dwarf(image.file) or DEBUG_FILE in sources.names
        self.found: dict[int, Named] = {}
        self.shown: dict[str, str] = {}
        self._image = image
        self._answers = -1

    @property
    def kept(self) -> int:
        """Units whose lines were read, and sixteens of answers and of shown names, which are small: what a file takes
        grows with their number.
        """
        lines = self.__dict__.get("lines")
        return (len(self.found) + len(self.shown)) // _NAMES_A_PART + (lines.units if lines is not None else 0)

    def rest(self) -> bool:
        """What was read for lines goes, if nothing new was answered since this was called before; the answers stay. Did
        it? The debug information of one program may be larger than all else.
        """
        idle, self._answers = len(self.found) == self._answers, len(self.found)
        return idle and self.__dict__.pop("lines", None) is not None

    @cached_property
    def lines(self) -> SourceLines | None:
        """None where there is no DWARF."""
        file = self._image.file
        dwarf = file if has_dwarf(file) else self._image.debug
        if dwarf is None or not has_dwarf(dwarf):
            return None
        return SourceLines(dwarf, file.min_vaddr - dwarf.min_vaddr, self._image.alternate)

    @cached_property
    def symbol_file(self) -> SymbolFileNames | None:
        """None where the user gave no symbol file for it."""
        file = self._image.symbols
        return SymbolFileNames(file) if file else None

    def demangled(self, names: Iterable[str]) -> dict[str, str]:
        """Every name that was asked for so far -> what to show."""
        self.shown.update(demangle(name for name in names if name not in self.shown))
        return self.shown


_SOME_PARTS, _SOME_GROWTH = 16, 8
"""What has grown by so many parts and one in so many is measured again: measuring takes a millisecond a file."""


@dataclass(slots=True)
class _Entry:
    """value: a file's names or what one root's folders say. root: where it was found, "" where that does not matter.

    size: bytes, when it was measured last. due: how many parts it has when it is measured again; see _SOME_GROWTH.
    """

    value: FileNames | Packages | CythonLines
    root: str
    size: int = 0
    due: int = 0


@dataclass
class NameCache:
    """Owned by the code that names addresses, for the life of the process. Not for several threads.

    most_bytes: kept after each resolve(). counts: since the beginning.
    """

    diagnostics: Diagnostics
    most_bytes: int = MOST_BYTES
    _entries: OrderedDict[Hashable, _Entry] = field(default_factory=OrderedDict)
    _known: int = 0
    _read: int = 0
    _files: int = 0
    _dropped: int = 0

    def __post_init__(self) -> None:
        self.kernel = KernelNames(self.diagnostics)

    @property
    def counts(self) -> NameCounts:
        return NameCounts(self._known, self._read, self._files, self._dropped, self.nbytes)

    @property
    def nbytes(self) -> int:
        """Of everything that is kept, as estimated at the last trim()."""
        return sum(entry.size for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def looked_up(self, known: int, read: int) -> None:
        """Addresses that were answered from what is kept, and by reading."""
        self._known += known
        self._read += read

    def file(self, image: Image) -> FileNames:
        """Names of an image's file. What the caller adds to them counts from the next trim() on."""
        key, root = _identity(image)
        entry = self._entry(key)
        if entry is None:
            self._files += 1
            entry = self._entries[key] = _Entry(FileNames(image), root)
        assert isinstance(entry.value, FileNames)
        return entry.value

    def seen(self, image: Image) -> FileNames | None:
        """Of a file whose symbols have been read."""
        entry = self._entry(_identity(image)[0])
        return entry.value if entry is not None and isinstance(entry.value, FileNames) else None

    def packages(self, root: str) -> Packages:
        """The package database below a root."""
        key = ("packages", root)
        entry = self._entry(key) or self._entries.setdefault(key, _Entry(Packages(), root))
        assert isinstance(entry.value, Packages)
        return entry.value

    def cython(self, root: str, rights: Rights | None) -> CythonLines:
        """The sources of Cython's below a root."""
        key = ("cython", root, rights)
        entry = self._entry(key) or self._entries.setdefault(key, _Entry(CythonLines(root, rights), root))
        assert isinstance(entry.value, CythonLines)
        return entry.value

    def _entry(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def trim(self) -> None:
        """Measure what has grown, and drop what was used least recently until the rest is small enough."""
        for entry in self._entries.values():
            if (kept := entry.value.kept) >= entry.due:
                entry.size, entry.due = footprint(entry.value), kept + _SOME_PARTS + kept // _SOME_GROWTH
        total = self.nbytes
        while total > self.most_bytes:
            _, entry = self._entries.popitem(last=False)
            total -= entry.size
            self._dropped += 1

    def rest(self) -> None:
        """Now and then, where the process lives for long: see FileNames.rest."""
        for entry in self._entries.values():
            if isinstance(entry.value, FileNames) and entry.value.rest():
                entry.due = 0

    def retire(self, roots: Set[str], images: Set[ObjectFile] = frozenset()) -> None:
        """Drop what was found below the roots of processes that have ended: another process may get the number. images:
        files that are gone; those that were read from a process's memory are no other one's.
        """
        for key in [key for key, entry in self._entries.items() if entry.root in roots or key in images]:
            del self._entries[key]


def _identity(image: Image) -> tuple[Hashable, str]:
    """(what names a file, its root where other files below that root decide what it is called)."""
    file = image.file
    if image.from_memory:
        return file, image.root
    root = "" if ".symtab" in file.sections and has_dwarf(file) else image.root
    return (file.identity, root), root


def has_dwarf(file: ObjectFile) -> bool:
    """Has the file sections with lines and inlined functions, of its own?"""
    section = file.sections.get(".debug_info") or file.sections.get(".zdebug_info")
    return section is not None and section.stored
