"""Which sources of unwind rules a module has, and in which order they are asked. Nowhere else is this decided.

The order is UnwindOptions.sources; per pc, a source that does not cover it passes to the next. Names that are not
tables ("fp") belong to the fallback, which comes where all tables passed. A format is imported for the first file that
has its table.
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
from pyprof.unwind.base import Source

if TYPE_CHECKING:
    from pyprof.unwind.formats.breakpad.stack_cfi import FindSymbols
    from pyprof.unwind.formats.sframe.section import SFrame

Reader = Callable[[ObjectFile, Arch, Diagnostics], Source | None]
"""Opens one table of a file; None where the file has none."""


@dataclass(frozen=True, slots=True)
class TableReader:
    """A Reader. table: as ObjectFile.unwind_table calls it. module: in formats/. function: the reader there."""

    table: str
    module: str
    function: str

    def __call__(self, file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> Source | None:
        if file.unwind_table(self.table) is None:
            return None
        module = import_module(_full(self.module))
        return cast("Reader", getattr(module, self.function))(file, arch, diagnostics)


_TABLES = {
    "sframe": TableReader(".sframe", "sframe.section", "sframe_source"),
    "eh_frame": TableReader(".eh_frame", "cfi.eh_frame", "eh_frame_source"),
    "exidx": TableReader(".ARM.exidx", "exidx.section", "exidx_source"),
    "debug_frame": TableReader(".debug_frame", "cfi.debug_frame", "debug_frame_source"),
}
READERS: dict[str, Reader] = {**_TABLES}


def modules() -> list[str]:
    """Those that READERS import when a file has their table."""
    return [_full(reader.module) for reader in _TABLES.values()]


def _full(module: str) -> str:
    return f"pyprof.unwind.formats.{module}"


def with_symbols(find: FindSymbols) -> dict[str, Reader]:
    """READERS and one for Breakpad symbol files. find: the symbol file of an object file."""
    from pyprof.unwind.formats.breakpad.stack_cfi import breakpad_reader

    return {**READERS, "breakpad": breakpad_reader(find)}


def open_sources(
    file: ObjectFile,
    arch: Arch,
    names: Sequence[str],
    diagnostics: Diagnostics,
    readers: Mapping[str, Reader] = READERS,
) -> list[Source]:
    """The sources that file has, in the order of names. A broken one is counted and left out."""
    found = []
    for name in names:
        reader = readers.get(name)
        if reader is None:
            continue
        try:
            source = reader(file, arch, diagnostics)
        except FormatError as error:
            diagnostics.count(f"{name}: broken, not used")
            diagnostics.problem(file.name, problem_of(error))
            continue
        if source is not None:
            found.append(source)
    return found


def promises_frame_pointers(source: Source) -> bool:
    """Does it say that the functions that it does not cover keep frame records (SFRAME_F_FRAME_POINTER)?"""
    return source.name == "sframe" and cast("SFrame", source).frame_pointers


def ask_order(sources: Sequence[Source], exact: bool) -> Sequence[Source]:
    """The order for one pc. exact: the pc itself, not a return address, is looked up.

    Then a source that is not exact at every instruction comes last.
    """
    return sorted(sources, key=lambda source: not source.exact) if exact else sources
