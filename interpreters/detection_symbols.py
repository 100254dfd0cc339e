"""Symbols and sections that detect an interpreter in the object files of a process.

Detection code receives a ReadSymbols callable. read_symbols() reads the files in this process; in a recording the
worker reads them (session/worker/interpreter_symbols.py). KnownSymbols caches the results, so that each file is
searched once, even if many processes map it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Module

if TYPE_CHECKING:  # the sampler only calls ReadSymbols
    from pyprof.objfile.base import ObjectFile
    from pyprof.objfile.mapped_object_files import ImageStore

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_MAX_FILES = 4096
_MAX_COPIES = 4
"""Maximum number of mappings of one file that are searched for an interpreter. If a file cannot be found by these
mappings, others do not help.
"""
MAX_SYMBOLS = 64
"""Maximum number of symbols of interpreters that are used from one file; a hostile file may have more."""


class Wanted(NamedTuple):
    """The symbols and the section that a search for an interpreter looks for in files.

    A name that does not end in a zero byte matches all symbols that begin with it.

    Attributes:
        needed: A file without this symbol counts as one without the other symbols, too. b"" if no symbol is searched.
        names: Other symbols.
        section: Name of a section that also suffices to detect the interpreter, "" if there is none.
        go_functions: Names of functions that are searched only in the function table of Go programs. One of them
            suffices to detect the interpreter, too.
    """

    needed: bytes
    names: tuple[bytes, ...] = ()
    section: str = ""
    go_functions: tuple[bytes, ...] = ()


class Symbol(NamedTuple):
    """A defined symbol of a mapped file, by its address in the process.

    Attributes:
        name: Name of the symbol.
        avma: Address in the process.
        size: Size in bytes, 0 if it is not stated.
    """

    name: bytes
    avma: int
    size: int


@dataclass(frozen=True, slots=True)
class FoundSymbols:
    """The symbols and the section that a search for interpreters found in one file.

    Attributes:
        symbols: The symbols that the file defines.
        section: (avma, size in bytes) of the section, None if the file does not have it.
    """

    symbols: tuple[Symbol, ...] = ()
    section: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.symbols) or self.section is not None


ReadSymbols = Callable[[AddressSpace, Sequence[Module], Wanted], Sequence[FoundSymbols | None]]
"""Function (address space, modules, what is wanted) that searches the files of modules in order, up to the first file
with a result. It returns a list with one FoundSymbols for each searched file, None for a file that was not found.
"""


def read_symbols(
    images: ImageStore, space: AddressSpace, modules: Sequence[Module], wanted: Wanted
) -> list[FoundSymbols | None]:
    """Search the files of modules for symbols in this process (see ReadSymbols). A broken file counts as a file without
    symbols.
    """
    found: list[FoundSymbols | None] = []
    for module in modules:
        image = images.image(space, module.start)
        if image is None:
            found.append(None)
            continue
        try:
            found.append(_in_file(image.file, image.bias, wanted))
        except FormatError:
            found.append(FoundSymbols())
        if found[-1]:
            break
    return found


class KnownSymbols:
    """A cache of searches for interpreters' symbols, by object file."""

    def __init__(self, read: ReadSymbols) -> None:
        self._read = read
        self._known: dict[tuple[Wanted, tuple[str, int, str]], tuple[int, FoundSymbols]] = {}

    def find_first(
        self, space: AddressSpace, modules: Sequence[Module], wanted: Wanted
    ) -> tuple[Module, FoundSymbols] | None:
        """Return the first module whose file has any of the wanted symbols or the section, and what was found in it."""
        unknown: list[Module] = []
        copies: Counter[tuple[str, int, str]] = Counter()
        for module in modules:
            known = self._of(module, wanted)
            if known is None:
                copies[_file(module)] += 1
                if copies[_file(module)] <= _MAX_COPIES:
                    unknown.append(module)
            elif known:
                break
        self._learn(space, unknown, wanted)
        return next(((module, known) for module in modules if (known := self._of(module, wanted))), None)

    def _learn(self, space: AddressSpace, modules: Sequence[Module], wanted: Wanted) -> None:
        if not modules:
            return
        if len(self._known) >= _MAX_FILES:
            self._known.clear()
        for module, found in zip(modules, self._read(space, modules, wanted), strict=False):
            if found is not None:
                self._known[wanted, _file(module)] = find_anchor(module), found

    def _of(self, module: Module, wanted: Wanted) -> FoundSymbols | None:
        """Return the symbols that an earlier search found in a module's file, moved to the module's addresses. None if
        the file was not searched.
        """
        known = self._known.get((wanted, _file(module)))
        if known is None:
            return None
        at, found = known
        return _moved(found, find_anchor(module) - at)


def find_anchor(module: Module) -> int:
    """Return the avma of the file's first byte, computed from its first executable mapping; 0 if it has none.

    Other mappings of the file may not be known.
    """
    return next((mapping.start - mapping.offset for mapping in module.mappings if mapping.executable), 0)


def _file(module: Module) -> tuple[str, int, str]:
    return module.dev, module.inode, module.path


def _moved(found: FoundSymbols, by: int) -> FoundSymbols:
    section = found.section
    return FoundSymbols(
        tuple(symbol._replace(avma=symbol.avma + by) for symbol in found.symbols),
        None if section is None else (section[0] + by, section[1]),
    )


def _in_file(file: ObjectFile, bias: int, wanted: Wanted) -> FoundSymbols:
    """Search one object file for an interpreter's symbols. A file that is not 64-bit yields nothing.

    Raises:
        FormatError: The file is broken.
    """
    if file.address_size != 8:
        return FoundSymbols()
    section = file.sections.get(wanted.section) if wanted.section else None
    symbols = tuple(symbol._replace(avma=symbol.avma + bias) for symbol in _symbols(file, wanted))[:MAX_SYMBOLS]
    if not any(symbol.name == wanted.needed.rstrip(b"\0") for symbol in symbols):
        symbols = ()
    go_functions = tuple(
        symbol._replace(avma=symbol.avma + bias) for symbol in _go_functions(file, wanted.go_functions)
    )
    return FoundSymbols(symbols + go_functions, None if section is None else (section.addr + bias, section.size))


def _symbols(file: ObjectFile, wanted: Wanted) -> Iterator[Symbol]:
    """Yield the defined symbols of a file that are wanted, at their address in the file (svma)."""
    if not wanted.needed:
        return
    for table, strings in ((".dynsym", ".dynstr"), (".symtab", ".strtab")):
        text = bytes(file.section(strings) or b"")
        places = {at: name for name in (wanted.needed, *wanted.names) for at in _occurrences(text, name)}
        data = file.section(table) if wanted.needed in places.values() else None
        if data is None:
            continue
        symbols = np.frombuffer(data, _SYMBOL, len(data) // _SYMBOL.itemsize)
        hits = symbols[np.isin(symbols["name"], list(places)) & (symbols["shndx"] != 0)]
        for name, _, _, _, value, size in hits.tolist():
            yield Symbol(places[name].rstrip(b"\0"), value, size)


def _go_functions(file: ObjectFile, names: Sequence[bytes]) -> list[Symbol]:
    """Return the functions with these names in a Go program's function table, at their address in the file (svma).

    Raises:
        FormatError: The table is broken.
    """
    place = file.unwind_table(".gopclntab") if names else None
    if place is None:
        return []
    from pyprof.objfile.gopclntab import GoTable

    table = GoTable(file, place.svma)
    found = ((name, function) for name in names for function in table.find_functions(name))
    return [Symbol(name, function.start, function.end - function.start) for name, function in found]


def _occurrences(text: bytes, name: bytes) -> Iterator[int]:
    """Yield the offsets of a name in a string table, also inside other names: linkers store a common suffix only
    once.
    """
    at = text.find(name)
    while at >= 0:
        yield at
        at = text.find(name, at + 1)
