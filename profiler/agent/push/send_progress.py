"""Progress of a segment that is sent in several requests: accepted ones are not repeated while the agent runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pyprof.agent.segment_names import SegmentName

Some = TypeVar("Some")


class SegmentProgress:
    def __init__(self) -> None:
        self._of: SegmentName | None = None
        self._taken = 0

    def send(self, name: SegmentName, parts: Iterable[Some], post: Callable[[SegmentName, int, Some], None]) -> None:
        """Send the remaining parts of a segment; its parts are the same in each attempt. Exceptions of post are passed
        on.
        """
        if self._of != name:
            self._of, self._taken = name, 0
        for at, part in enumerate(parts):
            if at >= self._taken:
                post(name, at, part)
                self._taken = at + 1
