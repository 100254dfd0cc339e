"""The unwind sources of a module and their order, and the interface to rules that a process registers.

Only this file decides the order, by UnwindOptions.sources. If a source does not cover a pc, the next one is used. A
name that is not a table ("fp") belongs to the fallback, which is used after all tables. The reader of a format is
imported when a file first has its table.

JIT compilers register rules for code without a file. Registrations come and go, so a rule is valid at one time only.
The unwinder looks rules up in the order of time and clears its cache when the registrations change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.rules import FunctionRows, Rule, Source

if TYPE_CHECKING:
    from pyprof.unwind.formats.breakpad_stack_cfi import FindSymbols
    from pyprof.unwind.formats.sframe_source import SFrame


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
    "sframe": TableReader(".sframe", "sframe_source", "open_sframe"),
    "eh_frame": TableReader(".eh_frame", "cfi_sections", "open_eh_frame"),
    "exidx": TableReader(".ARM.exidx", "exidx_section", "open_exidx"),
    "go": TableReader(".gopclntab", "gopclntab", "go_source"),
    "pdata": TableReader(".pdata", "pdata", "open_pdata"),
    "debug_frame": TableReader(".debug_frame", "cfi_sections", "open_debug_frame"),
}
READERS: dict[str, Reader] = {**_TABLES}


def list_reader_modules() -> list[str]:
    """Return the names of the modules with table formats that READERS may import later."""
    return [_full(reader.module) for reader in _TABLES.values()]


def _full(module: str) -> str:
    return f"pyprof.unwind.formats.{module}"


def add_symbol_reader(find: FindSymbols) -> dict[str, Reader]:
    """Return the readers of all table formats (READERS) and in addition one for Breakpad symbol files.

    Args:
        find: Finds the symbol file of an object file.
    """
    from pyprof.unwind.formats.breakpad_stack_cfi import breakpad_reader

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


def promises_leaf_functions(source: Source) -> bool:
    """Return True if functions that the unwind source does not cover have no frame and call nothing."""
    return source.name == "pdata"


def order_sources(sources: Sequence[Source], exact: bool) -> Sequence[Source]:
    """Return the unwind sources in the order in which one pc is looked up.

    Args:
        sources: Sources of one file, in the configured order.
        exact: The pc is not a return address. Sources whose rules hold only at calls then come last.
    """
    return sorted(sources, key=lambda source: not source.exact) if exact else sources


RuleAt = Callable[[int, bool], Rule | None]
"""Function that finds the unwind rule in force: (lookup pc, pc is not a return address) -> rule, or None."""


class RuntimeRules(Protocol):
    """The protocol of unwind rules of JIT code, for all processes.

    All addresses are those in the process. No method raises.
    """

    def refresh(self, space: AddressSpace) -> None:
        """Read the current registrations of JIT code in an address space.

        The unwinder calls this before it walks samples of the space.
        """
        ...

    def changes(self, space: AddressSpace) -> Sequence[int]:
        """Return the times at which unwind rules of JIT code changed (CLOCK_MONOTONIC ns, ascending)."""
        ...

    def version(self, space: AddressSpace) -> int:
        """Return a number that changes whenever unwind rules of JIT code may have been added or removed."""
        ...

    def is_reserved(self, space: AddressSpace, avma: int) -> bool:
        """Return True if a runtime has reserved an address for JIT code.

        The runtime makes more and more of its reserved memory executable, which no event of the kernel reports.
        """
        ...

    def is_in_file(self, space: AddressSpace, avma: int) -> bool:
        """Return True if an address lies in a part of a file that holds a runtime's own code, without tables."""
        ...

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        """Return the unwind rows of JIT code that cover a lookup pc at a time and their source, or None.

        Args:
            space: The address space.
            pc: The lookup pc.
            exact: The pc is not a return address.
            time_ns: CLOCK_MONOTONIC time of the sample.
            rule_at: Finds the rules of other code, for JIT code whose registration refers to that code.
        """
        ...


class NoRuntimeRules:
    """An empty RuntimeRules, for processes without registered code."""

    def refresh(self, space: AddressSpace) -> None:
        pass

    def changes(self, space: AddressSpace) -> Sequence[int]:
        return ()

    def version(self, space: AddressSpace) -> int:
        return 0

    def is_reserved(self, space: AddressSpace, avma: int) -> bool:
        return False

    def is_in_file(self, space: AddressSpace, avma: int) -> bool:
        return False

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        return None
