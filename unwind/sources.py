"""Which sources of unwind rules a module has, and in which order they are asked. Nowhere else is this decided.

The order is UnwindOptions.sources; per pc, a source that does not cover it passes to the next. Names that are not
tables ("fp") belong to the fallback, which comes where all tables passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.unwind.base import Source
from pyprof.unwind.formats.breakpad.stack_cfi import FindSymbols, breakpad_reader
from pyprof.unwind.formats.cfi.debug_frame import debug_frame_source
from pyprof.unwind.formats.cfi.eh_frame import eh_frame_source
from pyprof.unwind.formats.exidx.section import exidx_source
from pyprof.unwind.formats.sframe.section import SFrame, sframe_source

Reader = Callable[[ObjectFile, Arch, Diagnostics], Source | None]
"""Opens one table of a file; None where the file has none."""

READERS: dict[str, Reader] = {
    "sframe": sframe_source,
    "eh_frame": eh_frame_source,
    "exidx": exidx_source,
    "debug_frame": debug_frame_source,
}


def with_symbols(find: FindSymbols) -> dict[str, Reader]:
    """READERS and one for Breakpad symbol files. find: the symbol file of an object file."""
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
            diagnostics.problem(file.name, error.message)
            continue
        if source is not None:
            found.append(source)
    return found


def promises_frame_pointers(source: Source) -> bool:
    """Does it say that the functions that it does not cover keep frame records (SFRAME_F_FRAME_POINTER)?"""
    return isinstance(source, SFrame) and source.frame_pointers


def ask_order(sources: Sequence[Source], exact: bool) -> Sequence[Source]:
    """The order for one pc. exact: the pc itself, not a return address, is looked up.

    Then a source that is not exact at every instruction comes last.
    """
    return sorted(sources, key=lambda source: not source.exact) if exact else sources
