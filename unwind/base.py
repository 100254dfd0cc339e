"""What a source of unwind rules is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.walk import Trust
from pyprof.unwind.rules import FunctionRows

Extents = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""start, end (n,) svma of functions, ascending by start."""


class Source(Protocol):
    """One table of one object file, decoded function by function when first asked.

    Raises FormatError from function_at where the table is broken at that place.
    """

    name: str
    trust: Trust

    @property
    def exact(self) -> bool:
        """Is it right at every instruction, not only at calls? If not it is asked last at exact pcs."""
        ...

    def function_at(self, svma: int) -> FunctionRows | None:
        """The rows of the function that covers svma; None if the table does not cover it."""
        ...

    def extents(self) -> Extents:
        """Where functions are, without decoding their rows; for inspection. Raises FormatError."""
        ...

    def functions(self) -> Iterator[FunctionRows]:
        """All functions, ascending by start; for inspection, not for the walk."""
        ...
