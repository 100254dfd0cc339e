"""What the symbolizer asks about code that no file describes."""

from __future__ import annotations

from typing import Protocol

from pyprof.model.code import CodeName
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.images import Image
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class Described:
    """module: "[jit] gdb" and its like. image: an object file in memory with its symbols and lines; name: what else
    names the code, asked where the image does not.
    """

    module: Module
    image: Image | None = None
    name: CodeName | None = None


class DescribedCode(Protocol):
    """Answers of one recording."""

    def described(self, number: int) -> Described:
        """number: a FrameKey.code that is not 0."""
        ...

    def seen(self, number: int) -> Described | None:
        """What described() has said before."""
        ...

    def late(self, space: AddressSpace, pc: int) -> Described | None:
        """Of code in no file whose description had not come when its sample was walked. pc: lookup pc."""
        ...
