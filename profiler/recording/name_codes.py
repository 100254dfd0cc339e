"""Numbers that stand for names in a recording file. The file contains the names, so the numbers may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from pyprof.model.interpreter_state import SampleState
from pyprof.model.marker_frames import MarkKind
from pyprof.model.profile import FrameKind
from pyprof.model.walk import StackEnd, Trust
from pyprof.recording.checked_rows import CellRow, TableRows

RECORDED, LATER = 1, 2
"""Values of name_sources.id: RECORDED for names that the recording itself resolved, LATER for others."""
NAME_SOURCES = {RECORDED: "recorded", LATER: "report"}
_CODES: dict[str, type[IntEnum] | type[IntFlag]] = {
    "frame_kind": FrameKind,
    "trust": Trust,
    "mark_kind": MarkKind,
    "stack_end": StackEnd,
    "state": SampleState,
}


def list_codes() -> Iterator[CellRow]:
    for code, members in _CODES.items():
        for member in members:
            yield code, int(member), str(member.name).lower()


class Codes:
    """The meaning of the numbers that stand for names in one recording file.

    Names that a newer pyprof added are unknown, and rows that use them are refused.
    """

    def __init__(self, rows: TableRows) -> None:
        """Read the names and numbers in the table `codes` of a recording file.

        Raises:
            FormatError: A row is invalid.
        """
        self._known: dict[str, dict[int, int]] = {code: {} for code in _CODES}
        for code, number, name in rows("codes"):
            members = {str(member.name).lower(): int(member) for member in _CODES.get(code, ())}
            if name in members:
                self._known[code][number] = members[name]

    def code_map(self, code: str) -> Mapping[int, int]:
        """Return a map from the numbers of the recording file to the numbers of this version."""
        return self._known[code]

    def convert_states(self, state: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Convert the states of samples in a recording file to the bits of this version."""
        found = np.zeros(len(state), np.int32)
        for theirs, ours in self._known["state"].items():
            found |= np.where(state & theirs, ours, 0).astype(np.int32)
        return found
