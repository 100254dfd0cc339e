"""The difference between this machine's clock and a receiver's, by the date of its responses."""

from __future__ import annotations

from collections.abc import Callable

MOST_DIFFERENCE_S = 30.0
"""Difference in seconds above which the agent warns: windows have the agent's time, queries use the server's."""


class ReceiverClock:
    """The clock of one sink's receiver; ahead_s is how far this machine's clock was ahead at the last response."""

    def __init__(self, sink: str, say: Callable[..., None]) -> None:
        """Create the object.

        Args:
            sink: Name of the sink.
            say: Writes a line of the log.
        """
        self.ahead_s = 0.0
        self._sink, self._say = sink, say
        self._warned_s = 0.0

    def compare(self, ahead_s: float) -> None:
        """Record the difference at a response, and log when the clocks begin or cease to differ, or the difference
        changes.
        """
        self.ahead_s = ahead_s
        differs = abs(ahead_s) > MOST_DIFFERENCE_S
        if differs and abs(ahead_s - self._warned_s) > MOST_DIFFERENCE_S:
            self._warned_s = ahead_s
            self._say("warning", "clocks differ", sink=self._sink, ahead_seconds=round(ahead_s))
        elif not differs and self._warned_s:
            self._warned_s = 0.0
            self._say("info", "clocks agree", sink=self._sink)
