"""The binding of native/flow: the analysis of functions by native code, with the results of x86_flow and proof."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.objfile.base import Segment
from pyprof.unwind.code_analysis.frame_state import FrameRow
from pyprof.unwind.code_analysis.function_index import FunctionIndex
from pyprof.unwind.code_analysis.function_states import Outline, Run

MAX_SIZE = 1 << 30
"""Maximum size in bytes of a segment whose functions native code analyses."""

ROW = struct.Struct("=26i")
RUN = struct.Struct("=QQ104s")
"""The structures `row` and `run` of flow.h."""

_OWN = threading.local()
"""Working memory of each thread by nesting depth: the analysis of a function may need the analysis of one that it
calls.
"""


def _words(names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, ctypes.c_uint64) for name in names.split()]


class FlowRow(ctypes.Structure):
    """The structure `flow` of flow.h. Lists are addresses of arrays."""

    _fields_ = _words(
        "data size base certain named limits slots certain_count named_count limit_count slot_count slot_returns "
        "segments segment_count entry memory start returns end runs run_count asked answers asked_count"
    )


class NativeFlow:
    """The functions of one segment of code, as analysed by native code."""

    def __init__(
        self, library: ctypes.CDLL, segments: Sequence[tuple[Segment, memoryview]], entry: int, index: FunctionIndex
    ) -> None:
        """Pass the code of a file and its known functions to the native analysis.

        Args:
            library: The native code.
            segments: The segments of the file, each with its bytes. The first one has the code.
            entry: Entry point of the program, 0 if there is none.
            index: The functions of the file.
        """
        self._library = library
        self._index = index
        self._row = FlowRow(entry=entry)
        self._certain = -1
        self._lists: tuple[Any, ...] = ()
        self._rows: dict[bytes, FrameRow] = {}
        texts = [np.frombuffer(data, np.uint8) for _, data in segments]
        table = np.array(
            [(segment.vaddr, len(text), _address(text)) for (segment, _), text in zip(segments, texts, strict=True)],
            np.uint64,
        )
        slots = sorted((slot, returns) for slot, returns in index.imported.items() if slot is not None)
        places = np.array([slot for slot, _ in slots], np.uint64)
        may_return = np.array([returns for _, returns in slots], np.uint8)
        row = self._row
        row.data, row.size, row.base = _address(texts[0]), len(texts[0]), segments[0][0].vaddr
        row.segments, row.segment_count = _address(table), len(table)
        row.slots, row.slot_returns, row.slot_count = _address(places), _address(may_return), len(places)
        self._kept = texts, table, places, may_return

    def analyse(self, start: int, depth: int) -> Outline | None:
        """Analyse the function at an address, and return its outline, or None if its code contradicts itself.

        Args:
            start: The address.
            depth: 0, or 1 for a function that another one calls whose analysis is not finished.
        """
        row, index = self._row, self._index
        if self._certain != len(index.certain):
            self._certain = len(index.certain)
            lists = [np.array(sorted(found), np.uint64) for found in (index.certain, index.named, index.limits)]
            row.certain, row.named, row.limits = (_address(found) for found in lists)
            row.certain_count, row.named_count, row.limit_count = (len(found) for found in lists)
            self._lists = tuple(lists)
        row = row if depth == 0 else FlowRow.from_buffer_copy(row)
        row.memory, row.start = _memory(self._library, depth), start
        if not self._library.flow_analyse(ctypes.byref(row)):
            return None
        return Outline(row.returns, row.end)

    def prove(self, returns: Callable[[int], bool]) -> list[Run]:
        """Return the rules of the function that was analysed last, as far as they are proved.

        Args:
            returns: Returns True for the address of a call if the called function is known to return.
        """
        row = self._row
        while not self._library.flow_prove(ctypes.byref(row)):
            asked = list((ctypes.c_uint64 * row.asked_count).from_address(row.asked))
            answers = [returns(call) for call in asked]
            ctypes.memmove(row.answers, bytes(answers), len(answers))
        text = ctypes.string_at(row.runs, row.run_count * RUN.size)
        return [(start, end, self._frame_row(found)) for start, end, found in RUN.iter_unpack(text)]

    def _frame_row(self, text: bytes) -> FrameRow:
        found = self._rows.get(text)
        if found is None:
            numbers = ROW.unpack(text)
            found = self._rows[text] = FrameRow._make((*numbers[:8], numbers[8:]))
        return found


def _address(array: npt.NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _memory(library: ctypes.CDLL, depth: int) -> int:
    """Return the address of this thread's working memory at a depth. Its pages take no room before they are used."""
    found: dict[int, npt.NDArray[np.uint8]] = _OWN.__dict__.setdefault("memory", {})
    if depth not in found:
        found[depth] = np.zeros(library.flow_memory_size() + 8, np.uint8)
    return _address(found[depth]) + 7 & ~7
