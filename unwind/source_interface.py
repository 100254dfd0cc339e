"""The interface of a source of unwind rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.walk import Trust
from pyprof.unwind.rules import FunctionRows

Extents = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Start and end addresses of functions in an object file (svma), each an array of shape (n,), ascending by start."""


class Source(Protocol):
    """One unwind table of one object file. It decodes a function when a caller first needs it.

    Attributes:
        name: Name of the source, as in `--unwind`.
        trust: Trust value of the frames that its rules find.
    """

    name: str
    trust: Trust

    @property
    def exact(self) -> bool:
        """True if the unwind rules of the source hold at every instruction, not only at calls.

        Other sources are used last for a pc that is not a return address.
        """
        ...

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the unwind rows of the function that covers a file address, or None if the table does not cover it.

        Args:
            svma: Address in the file.

        Raises:
            FormatError: The table is broken at that place.
        """
        ...

    def extents(self) -> Extents:
        """Return the address ranges of all functions in an unwind table without decoding their rows, for inspection.

        Raises:
            FormatError: The table is broken.
        """
        ...

    def functions(self) -> Iterator[FunctionRows]:
        """Yield the unwind rows of all functions, ascending by start address; for inspection, not for unwinding."""
        ...
