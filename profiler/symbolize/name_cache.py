"""Caches of symbols and lines of object files, and of the finished frames of one recording.

NameCache returns one FileNames for all processes that map a file. The key of a file is its build ID and size, because a
stripped copy has the build ID of the complete file. Without a build ID, the key is device, inode, size and modification
time. The cache is limited in bytes, and drops the least recently used files first.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.address_space import Module
from pyprof.model.profile import Frame, Line, ModuleInfo
from pyprof.model.stacks import FrameKey
from pyprof.model.summary import NameCounts
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.debug_files import Packages
from pyprof.objfile.mapped_object_files import Image
from pyprof.objfile.untrusted_file_access import Rights
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.breakpad_names import SymbolFileNames
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.dwarf_source_lines import SourceLines, SourcePlace
from pyprof.symbolize.elf_symtab import DEBUG_FILE, read_symbol_sources
from pyprof.symbolize.kernel_symbols import KernelNames
from pyprof.symbolize.symbol_table import Labels, SymbolTable

if TYPE_CHECKING:
    from pyprof.symbolize.go_function_lookup import GoNames
    from pyprof.symbolize.source_files import CythonLines


class SettledFrame(NamedTuple):
    """A named frame whose name is final, so that later windows can use it. Its module index is valid in the profile for
    which it was made.
    """

    frame: Frame
    module: Module
    build_id: str

    def convert_modules(self, modules: FrameModules) -> Frame:
        """Return the frame for another profile, with the index that its module has there."""
        index = modules.module_index(self.module, self.build_id, self.frame.lines)
        return self.frame if index == self.frame.module else replace(self.frame, module=index)


class SettledFrameCache:
    """A cache of the frames of one recording whose names are final. It keeps those that the current or the previous
    window used.
    """

    def __init__(self) -> None:
        self._now: dict[FrameKey, SettledFrame] = {}
        self._before: dict[FrameKey, SettledFrame] = {}

    def settled_among(self, keys: Sequence[FrameKey]) -> dict[FrameKey, SettledFrame]:
        """Return those of the given frames whose names are final, with their names, by frame key."""
        if before := self._before:
            self._now.update((key, before[key]) for key in keys if key in before)
        now = self._now
        return {key: now[key] for key in keys if key in now}

    def add_frame(self, key: FrameKey, frame: Frame, module: Module, build_id: str) -> None:
        self._now[key] = SettledFrame(frame, module, build_id)

    def begin_window(self) -> None:
        """Start the next window: drop the frames that the last two windows did not use."""
        self._before, self._now = self._now, {}


class FrameModules:
    """The modules of a profile's frames in the order of their first use. It also has the text that names each module in
    the names of code without a symbol.
    """

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._index: dict[tuple[int, int, str, str], int] = {}
        self._seen: dict[tuple[int, str], tuple[Module, int]] = {}
        self._infos: list[ModuleInfo] = []

    def module_index(self, module: Module, build_id: str, lines: tuple[Line, ...]) -> int:
        _, at = self._seen.get((id(module), build_id)) or (module, -1)
        if at < 0:
            at = self._add(module, build_id)
            self._seen[id(module), build_id] = module, at  # kept alive, so that no other object gets its id
        info = self._infos[at]
        if info.has_functions and info.has_lines:
            return at
        functions, has_lines = any(line.system_name for line in lines), any(line.line for line in lines)
        if functions > info.has_functions or has_lines > info.has_lines:
            self._infos[at] = replace(
                info, has_functions=info.has_functions or functions, has_lines=info.has_lines or has_lines
            )
        return at

    def _add(self, module: Module, build_id: str) -> int:
        """Add a module of a profile and return its index. Mappings of one file at one place count as one module."""
        code = [m for m in module.mappings if m.executable] or list(module.mappings)
        at = self._index.setdefault((code[0].start, code[-1].end, module.path, build_id), len(self._infos))
        if at == len(self._infos):
            self._infos.append(
                ModuleInfo(module.path, build_id, code[0].start, code[-1].end, code[0].offset, False, False)
            )
        return at

    def module_infos(self) -> tuple[ModuleInfo, ...]:
        return tuple(self._infos)


_SAMPLE = 16
_MAX_VISITED = 1 << 18
"""Maximum number of objects that are visited to estimate the memory of one cache entry. A larger entry is
underestimated, but is still the largest.
"""
_NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Diagnostics, Image)


def estimate_footprint(root: object) -> int:
    """Return the estimated size in bytes of an object and all objects that it refers to.

    Classes, functions, methods, Diagnostics and Images are shared and do not count. The elements of a container of more
    than 16 count by the mean of 16 of them, evenly spread.
    """
    seen: set[int] = set()
    total = 0.0
    waiting: list[tuple[object, float]] = [(root, 1.0)]
    while waiting and len(seen) < _MAX_VISITED:
        value, weight = waiting.pop()
        if id(value) in seen or value is None or isinstance(value, _NOT_ITS_OWN):
            continue
        seen.add(id(value))
        total += weight * _shallow(value)
        for part, count in _parts(value):
            waiting.extend((each, weight * count) for each in part)
    return round(total)


def _shallow(value: object) -> int:
    if isinstance(value, np.ndarray):
        return sys.getsizeof(value) if value.base is None else 128
    return sys.getsizeof(value, 64)


def _parts(value: object) -> Iterator[tuple[Iterable[object], float]]:
    """Yield the objects to which an object refers, in groups, for an estimate of its size.

    Yields:
        (objects, weight). Of a large container only some elements are yielded; each stands for `weight` of them.
    """
    if isinstance(value, str | bytes | bytearray | int | float):
        return
    if isinstance(value, memoryview):
        yield (value.obj,), 1.0
    elif isinstance(value, np.ndarray):
        yield (value.base,), 1.0
    elif isinstance(value, dict):
        yield _spread(list(value.keys()))
        yield _spread(list(value.values()))
    elif isinstance(value, list | tuple):
        yield _spread(value)
    elif isinstance(value, set | frozenset):
        yield _spread(list(value))
    else:
        yield _attributes(value), 1.0


def _spread(values: Sequence[object]) -> tuple[Iterable[object], float]:
    if len(values) <= _SAMPLE:
        return values, 1.0
    step = len(values) // _SAMPLE
    return islice(values, 0, step * _SAMPLE, step), len(values) / _SAMPLE


def _attributes(value: object) -> list[object]:
    found: list[object] = []
    if (own := getattr(value, "__dict__", None)) is not None:
        found.append(own)
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        found += [getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    return found


MAX_BYTES = 256 << 20
"""Maximum size in bytes of the cache of names. libxul with its lines takes about 150 MB."""


@dataclass(frozen=True, slots=True)
class Named:
    """The function names and source places at one address in an object file.

    Attributes:
        system_name: Symbol name, "" if there is none.
        function: Start address of the function in the file, None if it is unknown.
        source: Source places, the innermost inlined function first and the function itself last.
    """

    system_name: str = ""
    function: int | None = None
    source: tuple[SourcePlace, ...] = ()


_NAMES_A_PART = 16
IDLE_CALLS = 10
"""Number of windows without a new lookup in a file after which its debug information for lines is dropped. An agent
with few samples would otherwise read it again in each window.
"""


class FileNames:
    """The symbols, lines and inlined functions of one object file, read on demand.

    Attributes:
        found: Earlier results, by address in the file.
        shown: Demangled names, by symbol name.
        broken: Errors of its symbol table.
        table: Its symbols.
        complete: True if functions that are not exported have symbols too.
        may_have_lines: True if the file may have lines, as far as is known without reading any.
    """

    def __init__(self, image: Image) -> None:
        sources = read_symbol_sources(image.file, lambda: image.debug)
        self.broken = [str(error) for error in sources.broken]
        self.table = SymbolTable(sources.rows)
        self.complete = sources.complete
        self.may_have_lines = has_dwarf(image.file) or DEBUG_FILE in sources.names
        self.found: dict[int, Named] = {}
        self.shown: dict[str, str] = {}
        self._image = image
        self._answers, self._idle_calls = -1, 0

    @property
    def kept(self) -> int:
        """A number that grows with the memory that the names of an object file use. The cache of names measures that
        memory only after the number has grown.

        It counts units whose lines were read, and results and demangled names in groups of 16, because these are small.
        """
        lines = self.__dict__.get("lines")
        return (len(self.found) + len(self.shown)) // _NAMES_A_PART + (lines.units if lines is not None else 0)

    def drop_idle_lines(self) -> bool:
        """Drop the debug information that was read for lines if there was no new lookup in the last IDLE_CALLS calls.
        Results are kept.

        The debug information of one program may be larger than everything else.

        Returns:
            True if data was dropped.
        """
        is_idle, self._answers = len(self.found) == self._answers, len(self.found)
        self._idle_calls = self._idle_calls + 1 if is_idle else 0
        return self._idle_calls >= IDLE_CALLS and self.__dict__.pop("lines", None) is not None

    @cached_property
    def lines(self) -> SourceLines | None:
        """The source lines of the object file, None if it has no DWARF."""
        file = self._image.file
        dwarf = file if has_dwarf(file) else self._image.debug
        if dwarf is None or not has_dwarf(dwarf):
            return None
        return SourceLines(dwarf, file.min_vaddr - dwarf.min_vaddr, self._image.alternate)

    @cached_property
    def go_names(self) -> GoNames | None:
        """The names in the object file's .gopclntab, None if it is not a Go program."""
        table = self._image.file.unwind_table(".gopclntab")
        if table is None:
            return None
        from pyprof.symbolize.go_function_lookup import go_names

        return go_names(self._image.file, table.svma, self.broken)

    @cached_property
    def symbol_file(self) -> SymbolFileNames | None:
        """The names in the user's Breakpad symbol file for this object file, None if there is none."""
        file = self._image.symbols
        return SymbolFileNames(file) if file else None

    def demangle_names(self, names: Iterable[str]) -> dict[str, str]:
        """Demangle names, and return the text for every name that was requested so far."""
        self.shown.update(demangle(name for name in names if name not in self.shown))
        return self.shown


_SOME_PARTS, _SOME_GROWTH = 16, 8
"""Growth after which the memory of a cache entry is measured the next time: _SOME_PARTS parts plus 1/_SOME_GROWTH of
all its parts (see FileNames.kept). A measurement takes 1 ms per file.
"""


@dataclass(slots=True)
class _Entry:
    """One entry in the cache of names of object files.

    Attributes:
        value: The names of a file, or the packages or Cython sources below a root directory.
        root: Root directory to which the entry belongs, "" if it belongs to none.
        size: Size in bytes at the last measurement.
        due: Value of FileNames.kept at which the entry is measured next.
    """

    value: FileNames | Packages | CythonLines
    root: str
    size: int = 0
    due: int = 0


@dataclass
class NameCache:
    """A cache of the functions and source lines that were read from object files. It lives as long as the process, and
    is not thread-safe.

    Attributes:
        diagnostics: Receives counters.
        most_bytes: Maximum size in bytes after each trim().
        suggests_packages: True to find out which package has the debug symbols of a file, for the user.
        counts: Counts of lookups and of read files since the start of the process.
    """

    diagnostics: Diagnostics
    most_bytes: int = MAX_BYTES
    suggests_packages: bool = True
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
        """The estimated size of all entries of the name cache in bytes, as of the last trim()."""
        return sum(entry.size for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def count_lookups(self, found: int, read: int) -> None:
        """Count addresses whose names were found in the cache, and those that required reading."""
        self._known += found
        self._read += read

    def file_names(self, image: Image) -> FileNames:
        """Return the names of an object file, from the cache. Data that the caller adds to them counts from the next
        trim() on.
        """
        key, root = _identity(image)
        entry = self._entry(key)
        if entry is None:
            self._files += 1
            entry = self._entries[key] = _Entry(FileNames(image), root)
        assert isinstance(entry.value, FileNames)
        return entry.value

    def known_file_names(self, image: Image) -> FileNames | None:
        """Return the names of an object file if its symbols have been read before, else None."""
        entry = self._entry(_identity(image)[0])
        return entry.value if entry is not None and isinstance(entry.value, FileNames) else None

    def packages(self, root: str) -> Packages:
        """Return the package database of a root directory, from the cache."""
        key = ("packages", root)
        entry = self._entry(key) or self._entries.setdefault(key, _Entry(Packages(), root))
        assert isinstance(entry.value, Packages)
        return entry.value

    def cython(self, root: str, rights: Rights | None) -> CythonLines:
        """Return the Cython sources below a root directory, from the cache."""
        from pyprof.symbolize.source_files import CythonLines  # only frames with a source line need it

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
        """Measure entries of the name cache that have grown, and drop the least recently used ones until the cache is
        small enough.
        """
        for entry in self._entries.values():
            if (kept := entry.value.kept) >= entry.due:
                entry.size, entry.due = estimate_footprint(entry.value), kept + _SOME_PARTS + kept // _SOME_GROWTH
        total = self.nbytes
        while total > self.most_bytes:
            _, entry = self._entries.popitem(last=False)
            total -= entry.size
            self._dropped += 1

    def drop_idle_lines(self) -> None:
        """Drop the debug information for lines of each file that had no new lookup in the last IDLE_CALLS calls.

        Long-lived processes call this from time to time.
        """
        for entry in self._entries.values():
            if isinstance(entry.value, FileNames) and entry.value.drop_idle_lines():
                entry.due = 0

    def retire(self, roots: Set[str], images: Set[ObjectFile] = frozenset()) -> None:
        """Drop cached names that belong to processes which have ended, because another process may get the same pid.

        Args:
            roots: Root directories of the processes (/proc/PID/root).
            images: Files that no process maps any more. Those that were read from a process's memory belong to no other
                process.
        """
        for key in [key for key, entry in self._entries.items() if entry.root in roots or key in images]:
            del self._entries[key]


def _identity(image: Image) -> tuple[Hashable, str]:
    """Return the cache key of an object file, and the root directory if other files below it affect the names, else
    "".
    """
    file = image.file
    if image.from_memory:
        return file, image.root
    root = "" if ".symtab" in file.sections and has_dwarf(file) else image.root
    return (file.identity, root), root


def has_dwarf(file: ObjectFile) -> bool:
    """Return True if the object file itself has DWARF sections with lines and inlined functions."""
    section = file.sections.get(".debug_info") or file.sections.get(".zdebug_info")
    return section is not None and section.stored
