"""The unwind sources of a module, and the order in which they are used. Only this file decides that order.

The order is UnwindOptions.sources. If a source does not cover a pc, the next one is used. A name that is not a table
("fp") belongs to the fallback, which is used after all tables. The reader of a format is imported when a file first has
its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.reasons import problem_of
from pyprof.objfile.base import ObjectFile
from pyprof.records import dataclass
from pyprof.unwind.rules import Source

if TYPE_CHECKING:
    from pyprof.unwind.formats.breakpad.stack_cfi import FindSymbols
    from pyprof.unwind.formats.sframe.section import SFrame

Reader = Callable[[ObjectFile, Arch, Diagnostics], Source | None]
"""Function that opens one unwind table of a file. It returns None if the file does not have the table."""


@dataclass(frozen=True, slots=True)
class TableReader:
    """A Reader of an unwind table that imports its format only if the file has the table.

    Attributes:
        table: Name of the table, as for ObjectFile.unwind_table.
        module: Module in unwind/formats/.
        function: Name of the Reader in that module.
    """

    table: str
    module: str
    function: str

    def __call__(self, file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> Source | None:
        if file.unwind_table(self.table) is None:
            return None
        module = import_module(_full(self.module))
        return cast("Reader", getattr(module, self.function))(file, arch, diagnostics)


_TABLES = {
    "sframe": TableReader(".sframe", "sframe.section", "open_sframe"),
    "eh_frame": TableReader(".eh_frame", "cfi.eh_frame", "open_eh_frame"),
    "exidx": TableReader(".ARM.exidx", "exidx.section", "open_exidx"),
    "go": TableReader(".gopclntab", "gopclntab", "go_source"),
    "debug_frame": TableReader(".debug_frame", "cfi.debug_frame", "open_debug_frame"),
}
READERS: dict[str, Reader] = {**_TABLES}


def list_reader_modules() -> list[str]:
    """Return the names of the modules with table formats that READERS may import later."""
    return [_full(reader.module) for reader in _TABLES.values()]


def _full(module: str) -> str:
    return f"pyprof.unwind.formats.{module}"


def add_symbol_reader(find: FindSymbols) -> dict[str, Reader]:
    """Return READERS and in addition a reader for Breakpad symbol files.

    Args:
        find: Finds the symbol file of an object file.
    """
    from pyprof.unwind.formats.breakpad.stack_cfi import breakpad_reader

    return {**READERS, "breakpad": breakpad_reader(find)}


def open_sources(
    file: ObjectFile,
    arch: Arch,
    names: Sequence[str],
    diagnostics: Diagnostics,
    readers: Mapping[str, Reader] = READERS,
) -> list[Source]:
    """Return the unwind sources that a file has, in the order of `names`. A broken table is counted and left out."""
    found = []
    for name in names:
        reader = readers.get(name)
        if reader is None:
            continue
        try:
            source = reader(file, arch, diagnostics)
        except FormatError as error:
            diagnostics.count(f"unwind_table_broken:{name}")
            diagnostics.problem(file.name, problem_of(error))
            continue
        if source is not None:
            found.append(source)
    return found


def promises_frame_pointers(source: Source) -> bool:
    """Return True if the unwind source promises frame records in all functions it does not cover
    (SFRAME_F_FRAME_POINTER).
    """
    return source.name == "sframe" and cast("SFrame", source).frame_pointers


def order_sources(sources: Sequence[Source], exact: bool) -> Sequence[Source]:
    """Return the unwind sources in the order in which one pc is looked up.

    Args:
        sources: Sources of one file, in the configured order.
        exact: The pc is not a return address. Sources that are right only at calls then come last.
    """
    return sorted(sources, key=lambda source: not source.exact) if exact else sources
