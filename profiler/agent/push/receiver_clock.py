"""The difference between this machine's clock and a receiver's, by the date of its responses."""

from __future__ import annotations

from pyprof.agent.health_conditions import Conditions

MOST_DIFFERENCE_S = 30.0
"""Difference in seconds between the agent's and the receiver's clock above which the agent warns: windows have the
agent's time, queries use the server's.
"""


class ReceiverClock:
    """The clock of one sink's receiver; ahead_s is how far this machine's clock was ahead at the last response."""

    def __init__(self, sink: str, conditions: Conditions) -> None:
        """Create a comparison of clocks for the receiver of the sink with this name."""
        self.ahead_s = 0.0
        self._sink, self._conditions = sink, conditions
        self._stated_s = 0.0

    def compare(self, ahead_s: float) -> None:
        """Record the difference of clocks at a response. A change of the difference is a new line of the log."""
        self.ahead_s = ahead_s
        if abs(ahead_s) <= MOST_DIFFERENCE_S:
            self._stated_s = 0.0
            self._conditions.end("clock_differs", sink=self._sink)
            return
        if abs(ahead_s - self._stated_s) > MOST_DIFFERENCE_S:
            self._stated_s = ahead_s
        seconds = round(self._stated_s)
        error = f"this host's clock is {abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'} the receiver's"
        self._conditions.begin("clock_differs", error, sink=self._sink, ahead_seconds=seconds)
