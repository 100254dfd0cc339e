"""The symbolizer's interface to descriptions of run-time generated code."""

from __future__ import annotations

from typing import Protocol

from pyprof.model.jit_code_map import CodeName
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.images import Image
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class Described:
    """The description of a piece of code that a process generated at run time.

    Attributes:
        module: Its module, such as "[jit] gdb".
        image: An object file in memory with its symbols and lines, or None.
        name: A name from another source, used if the image has none.
    """

    module: Module
    image: Image | None = None
    name: CodeName | None = None


class DescribedCode(Protocol):
    """The protocol of the descriptions of JIT code in one recording."""

    def description(self, number: int) -> Described:
        """Return a description of JIT code by its number, a FrameKey.code that is not 0."""
        ...

    def known_description(self, number: int) -> Described | None:
        """Return a description of JIT code if description() has returned it before, else None."""
        ...

    def late_description(self, space: AddressSpace, pc: int) -> Described | None:
        """Return the description of run-time code that was read only after the sample was unwound, or None.

        Args:
            space: The address space.
            pc: Lookup pc in code that is in no file.
        """
        ...
