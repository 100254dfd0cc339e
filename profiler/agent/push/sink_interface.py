"""The interface of a sink."""

from __future__ import annotations

from typing import Protocol

from pyprof.agent.segment_names import SegmentName


class SegmentSink(Protocol):
    def send(self, name: SegmentName, data: bytes) -> None:
        """Send a segment, and return when the receiver has stored it.

        The same segment may be sent again after a crash, or if a response was lost.

        Raises:
            NotSent: The segment must be sent later.
            RefusedForGood: The receiver will never accept the segment.
            OSError: Writing failed.
        """
