"""How far this machine's clock and a receiver's differ, by the date of the receiver's answers."""

from __future__ import annotations

from collections.abc import Callable

MOST_DIFFERENCE_S = 30.0
"""A larger difference is a warning: a window's time is the agent's, and queries are by the server's."""


class ReceiverClock:
    """The clock of one sink's receiver. ahead_s: by how much this machine's clock was ahead at the last answer."""

    def __init__(self, sink: str, say: Callable[..., None]) -> None:
        """Args:
        say: takes lines of the log.
        """
        self.ahead_s = 0.0
        self._sink, self._say = sink, say
        self._warned_s = 0.0

    def compare(self, ahead_s: float) -> None:
        """Take what an answer says; write a line where the clocks begin or cease to differ, or differ otherwise."""
        self.ahead_s = ahead_s
        differs = abs(ahead_s) > MOST_DIFFERENCE_S
        if differs and abs(ahead_s - self._warned_s) > MOST_DIFFERENCE_S:
            self._warned_s = ahead_s
            self._say("warning", "clocks differ", sink=self._sink, ahead_seconds=round(ahead_s))
        elif not differs and self._warned_s:
            self._warned_s = 0.0
            self._say("info", "clocks agree", sink=self._sink)
