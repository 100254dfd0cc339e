"""The unwind rows that the analysis of a file's code has found, in pieces of consecutive code."""

from __future__ import annotations

from bisect import bisect_right

from pyprof.lazy_dataclasses import dataclass
from pyprof.unwind.rules import FunctionRows


@dataclass(frozen=True, slots=True)
class AnalysedCode:
    """Consecutive code of one function for which the analysis has found unwind rules.

    Attributes:
        rows: The unwind rows of the code.
        function: First address of the function.
        pushes: The function saves a register at its start, and returns.
    """

    rows: FunctionRows
    function: int
    pushes: bool


class AnalysedPieces:
    """The analysed code of one file, by address. Pieces do not overlap."""

    def __init__(self) -> None:
        self._pieces: dict[int, AnalysedCode] = {}
        self._starts: list[int] = []

    def find(self, svma: int) -> AnalysedCode | None:
        """Return the piece of analysed code that covers an address, or None."""
        at = bisect_right(self._starts, svma) - 1
        piece = self._pieces[self._starts[at]] if at >= 0 else None
        return piece if piece is not None and svma < piece.rows.end else None

    def add(self, piece: AnalysedCode) -> None:
        """Add a piece of analysed code, unless code of another function is already stored at its addresses."""
        start = piece.rows.start
        at = bisect_right(self._starts, start)
        if at and start < self._pieces[self._starts[at - 1]].rows.end:
            return
        if at < len(self._starts) and self._starts[at] < piece.rows.end:
            return
        self._starts.insert(at, start)
        self._pieces[start] = piece
