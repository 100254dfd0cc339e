"""Names, lines and inlined functions of a Go program, from the function table that Go's linker writes.

The names are those of Go's own tracebacks and of `go tool pprof`: type arguments are written `[...]`, and assembly
functions have no suffix for their calling convention. No content of the file makes GoNames.find raise.
"""

from __future__ import annotations

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.gopclntab import GoTable
from pyprof.symbolize.breakpad_names import NamedPlace
from pyprof.symbolize.dwarf_source_lines import SourcePlace


class GoNames:
    """A lookup of addresses in the function table of one Go program."""

    def __init__(self, table: GoTable, broken: list[str]) -> None:
        """Create a lookup of names in the function table of a Go program.

        Args:
            table: The function table.
            broken: Receives the errors of functions whose records cannot be read.
        """
        self._table = table
        self._broken = broken

    @property
    def has_inlined_calls(self) -> bool:
        """True if the function table's inlined calls can be read: since Go 1.18, and if moduledata was found."""
        try:
            return self._table.has_inlined_calls
        except FormatError:
            return False

    def find(self, svma: int, with_lines: bool = True) -> NamedPlace | None:
        """Return the names at a lookup pc in a Go program, or None if its function table does not cover it."""
        try:
            function = self._table.function_at(svma)
            if function is None or not function.name:
                return None
            places = self._table.places(function, svma) if with_lines else []
        except FormatError as error:
            self._broken.append(str(error))
            return None
        named = [SourcePlace(without_type_arguments(place.name), place.file, place.line) for place in places]
        return NamedPlace(without_type_arguments(function.name), function.start, True, named)


def without_type_arguments(name: str) -> str:
    """Return a Go function's name with its type arguments replaced by "...", as Go prints it.

    Before Go 1.21 the function table itself has names in that form.
    """
    head, bracket, rest = name.partition("[")
    _, closing, tail = rest.rpartition("]")
    return f"{head}[...]{tail}" if bracket and closing else name


def go_names(file: ObjectFile, svma: int, broken: list[str]) -> GoNames | None:
    """Return the names in a Go program's function table, or None if it cannot be read.

    Args:
        file: The file.
        svma: Address of the table.
        broken: Receives errors, also of later lookups in the returned object.
    """
    try:
        return GoNames(GoTable(file, svma), broken)
    except FormatError as error:
        broken.append(str(error))
        return None
