"""Prediction of the memory that the next stop of a thread reads for its frames, in the order in which
Copier.copy_frames reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from pyprof.interpreters.cpython.layout import NONE, ChainKind, Layout
from pyprof.interpreters.cpython.runtime_state import PyThread
from pyprof.interpreters.cpython.stop_snapshot import ReadHints
from pyprof.model.interpreter_state import FrameReadPlan, PlacedSpan, Span
from pyprof.records import dataclass

_FIXED = 3
"""Number of spans of memory before those of the read hints: the thread state, the GIL, the garbage collector's flag."""
_MAX_SPANS = 1000
_MAX_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ReadPlanKey:
    """The thread whose next stop was predicted, and a copy of its read hints (ReadHints) at that time."""

    thread: PyThread
    chunks: list[tuple[int, int, int]]
    frames: list[int]
    codes: list[int]
    asked: list[int]
    spans: list[Span]

    def habits(self) -> ReadHints:
        return ReadHints(self.chunks, self.frames, self.codes, self.asked, self.spans)


@dataclass(frozen=True, slots=True)
class FrameReadSizes:
    """The sizes of the structures that a copy of Python frames reads.

    Attributes:
        frame: Bytes of a frame.
        most: Maximum number of frames that are followed.
        room: Bytes that are copied beyond the top of a data stack.
    """

    frame: int
    most: int
    room: int


def plan_frames(
    layout: Layout,
    sizes: FrameReadSizes,
    thread: PyThread,
    habits: ReadHints,
    spans: Sequence[Span],
    settled: array[int],
) -> FrameReadPlan | None:
    """Predict what memory the next stop of a Python thread reads.

    Args:
        spans: All that is read at once.

    Returns:
        None if no read hints (ReadHints) of the thread are known yet, if it needs too much, or if it runs code whose
        names are not read yet.
    """
    if not habits.spans or habits.asked or len(spans) > _MAX_SPANS or sum(size for _, size in spans) > _MAX_BYTES:
        return None
    offsets = list(accumulate((size for _, size in spans), initial=0))
    placed = [PlacedSpan(at, size, offset) for (at, size), offset in zip(spans, offsets, strict=False)]
    loose_at = _FIXED + len(habits.chunks)
    of_thread, of_frame, cframe = layout.thread, layout.frame, layout.thread.cframe
    return FrameReadPlan(
        key=ReadPlanKey(thread, habits.chunks, habits.frames, habits.codes, habits.asked, habits.spans),
        spans=spans,
        chunks=placed[_FIXED:loose_at],
        loose=placed[loose_at : loose_at + len(habits.frames)],
        codes=settled,
        ident=thread.ident,
        interpreter=thread.interpreter,
        thread_id=of_thread.thread_id,
        interp=of_thread.interp,
        frame=of_thread.frame,
        chunk=of_thread.chunk,
        cframe=cframe,
        base_frame=of_thread.base_frame,
        by_cframe=cframe != NONE and layout.chain is not ChainKind.CFRAMES,
        root_cframe=thread.address + of_thread.root_cframe,
        cframe_size=of_thread.cframe_previous + 8,
        cframe_current=of_thread.cframe_current,
        cframe_previous=of_thread.cframe_previous,
        previous=of_frame.previous,
        code=of_frame.code,
        code_mask=of_frame.code_mask,
        frame_size=sizes.frame,
        most=sizes.most,
        room=sizes.room,
    )
