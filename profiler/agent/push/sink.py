"""What a sink is: something that takes segments."""

from __future__ import annotations

from typing import Protocol

from pyprof.agent.segments import SegmentName


class SegmentSink(Protocol):
    def send(self, name: SegmentName, data: bytes) -> None:
        """Returns when the receiver has it for good. The same segment may come again: after a crash, or where a
        receiver's answer was lost. Raises NotSent, RefusedForGood, OSError.
        """
