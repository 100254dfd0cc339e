"""The binding of native/flow: the analysis of functions in C, with the same results as the analysis in Python."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.objfile.base import ObjectFile, Segment
from pyprof.unwind.code_analysis.cfa_and_register_state import FrameRow
from pyprof.unwind.code_analysis.function_index import FunctionIndex
from pyprof.unwind.code_analysis.instruction_states import Outline, Run
from pyprof.unwind.code_analysis.x86_control_flow import MAX_TABLE

MAX_SIZE = 1 << 30
"""Maximum size in bytes of a code segment whose functions native code analyses. Larger ones are analysed in Python."""

ROW = struct.Struct("=26i")
RUN = struct.Struct("=QQ104s")
"""ROW and RUN are the struct-module formats of `struct row` and `struct run` in flow.h, which hold the results."""

_PIECE = 1 << 16
"""Size in bytes of the pieces in which data segments with jump tables are read. A program's data may be 50 MB, and its
jump tables are small.
"""
_MAX_TABLE_BYTES = 8 * MAX_TABLE
_MAX_PIECES = 4096
"""Maximum number of pieces of one file that are read. Jump tables outside of them are not used."""
_OWN = threading.local()
"""Working memory of the native analysis, one block per thread and nesting depth. The analysis of a function may need
that of a function that it calls.
"""


def _words(names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, ctypes.c_uint64) for name in names.split()]


class _Piece(NamedTuple):
    """A piece of a file's data that the analysis reads jump tables from. Tables that begin in its first `size` bytes
    lie within it completely.
    """

    svma: int
    size: int
    data: npt.NDArray[np.uint8]


class FlowRow(ctypes.Structure):
    """The ctypes mirror of `struct flow` in flow.h: inputs and results of the native analysis. Lists are given as
    addresses of arrays.
    """

    _fields_ = _words(
        "data size base certain named limits slots certain_count named_count limit_count slot_count slot_returns "
        "segments segment_count entry memory start returns end missing runs run_count asked answers asked_count"
    )


class NativeFlow:
    """The analysis of the functions in one segment of code by native code (native/flow). PythonFlow is its
    specification.
    """

    def __init__(
        self, library: ctypes.CDLL, file: ObjectFile, segment: Segment, code: memoryview, index: FunctionIndex
    ) -> None:
        """Pass the code of a file and its known functions to the native analysis.

        Args:
            library: The native code.
            file: The file. Of its other segments, only the pieces with tables are read.
            segment: The segment with the code.
            code: The bytes of the segment.
            index: The functions of the file.
        """
        self._library = library
        self._index = index
        self._file = file
        self._row = FlowRow(entry=file.entry or 0)
        self._pieces: list[_Piece] = []
        self._table = np.zeros(0, np.uint64)
        self._rows: dict[bytes, FrameRow] = {}
        slots = sorted((slot, returns) for slot, returns in index.imported.items() if slot is not None)
        places = np.array([slot for slot, _ in slots], np.uint64)
        may_return = np.array([returns for _, returns in slots], np.uint8)
        row = self._row
        self._add_piece(segment.vaddr, len(code), code)
        row.data, row.size, row.base = _address(self._pieces[0].data), len(code), segment.vaddr
        row.slots, row.slot_returns, row.slot_count = _address(places), _address(may_return), len(places)
        self._kept = places, may_return

    def analyse(self, start: int, depth: int) -> Outline | None:
        """Analyse a function, and return its outline, or None if its code contradicts itself.

        Args:
            start: First address of the function.
            depth: 0, or 1 if the function is analysed only because a function under analysis calls it.
        """
        row, index = self._row, self._index
        row.certain, row.certain_count = index.certain.buffer_info()
        row.named, row.named_count = index.named.buffer_info()
        row.limits, row.limit_count = index.limits.buffer_info()
        row = row if depth == 0 else FlowRow.from_buffer_copy(row)
        row.memory, row.start = _memory(self._library, depth), start
        while True:
            row.missing, row.segments, row.segment_count = 0, self._row.segments, self._row.segment_count
            is_sound = self._library.flow_analyse(ctypes.byref(row))
            if not row.missing or not self._read_piece(row.missing):
                return Outline(row.returns, row.end) if is_sound else None

    def _read_piece(self, svma: int) -> bool:
        """Read the piece of the file that contains a jump table. Return False if the file does not have those bytes."""
        begin = svma - svma % _PIECE
        for segment in self._file.loads:
            if 0 <= svma - segment.vaddr < segment.filesz and len(self._pieces) < _MAX_PIECES:
                begin = max(begin, segment.vaddr)
                end = begin + _PIECE - begin % _PIECE
                self._add_piece(begin, end - begin, self._file.at_svma(begin, end - begin + _MAX_TABLE_BYTES))
                return svma < begin + self._pieces[-1].size
        return False

    def _add_piece(self, svma: int, size: int, data: memoryview) -> None:
        self._pieces.append(_Piece(svma, min(size, len(data)), np.frombuffer(data, np.uint8)))
        self._table = np.array(
            [(each.svma, each.size, len(each.data), _address(each.data)) for each in self._pieces], np.uint64
        )
        self._row.segments, self._row.segment_count = _address(self._table), len(self._pieces)

    def prove(self, returns: Callable[[int], bool]) -> list[Run]:
        """Return the unwind rules of the function that was analysed last, for those instructions whose stack depth is
        proved.

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


def drop_memory() -> None:
    """Free this thread's working memory of the native analysis. The next analysis allocates it again."""
    _OWN.__dict__.clear()


def _address(array: npt.NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _memory(library: ctypes.CDLL, depth: int) -> int:
    """Return the address of this thread's working memory for an analysis at a nesting depth (0 or 1). The kernel
    allocates its pages on first use.
    """
    found: dict[int, npt.NDArray[np.uint8]] = _OWN.__dict__.setdefault("memory", {})
    if depth not in found:
        found[depth] = np.zeros(library.flow_memory_size() + 8, np.uint8)
    return _address(found[depth]) + 7 & ~7
