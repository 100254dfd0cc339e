"""All sinks of the agent: started again with a new configuration, their metrics, and the clocks of their receivers.

A receiver's clock is compared by the date of its responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from pyprof.agent.health_conditions import Conditions
from pyprof.agent.push.pusher import Pusher
from pyprof.agent.push.sink_types import PushTarget, made
from pyprof.agent.spool import Spool
from pyprof.diagnostics import Diagnostics

MAX_DIFFERENCE_S = 30.0
"""Difference in seconds between the agent's and the receiver's clock above which the agent warns: windows have the
agent's time, queries use the server's.
"""
Number = tuple[str, dict[str, str], float]
"""One value of a sink's metric: (name of the metric, its labels, its value)."""


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
        if abs(ahead_s) <= MAX_DIFFERENCE_S:
            self._stated_s = 0.0
            self._conditions.end("clock_differs", sink=self._sink)
            return
        if abs(ahead_s - self._stated_s) > MAX_DIFFERENCE_S:
            self._stated_s = ahead_s
        seconds = round(self._stated_s)
        error = f"this host's clock is {abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'} the receiver's"
        self._conditions.begin("clock_differs", error, sink=self._sink, ahead_seconds=seconds)


class Pushers:
    """All sinks of the agent and their queues; the arguments are those of Pusher."""

    def __init__(
        self,
        spool: Spool,
        writing: AbstractContextManager[object],
        conditions: Conditions,
        diagnostics: Diagnostics,
    ) -> None:
        self._spool, self._writing = spool, writing
        self._conditions, self._diagnostics = conditions, diagnostics
        self._of: list[tuple[PushTarget, Pusher]] = []
        self._clocks: dict[str, ReceiverClock] = {}

    def begin(self, targets: Sequence[PushTarget]) -> None:
        """Start the sinks of a configuration. Sinks that are unchanged continue.

        Raises:
            UsageError: A sink cannot be created; then nothing has changed.
        """
        known = [target for target, _ in self._of]
        clocks = {
            target.name: ReceiverClock(target.name, self._conditions) for target in targets if target not in known
        }
        new = [
            (target, made(target, clocks[target.name].compare), clocks[target.name])
            for target in targets
            if target not in known
        ]
        with self._writing:
            self._spool.begin_queues([target.name for target in targets])
        for target, pusher in self._of:
            if target not in targets:
                pusher.end()
                for reason in ("push_failing", "push_refused", "push_lost", "clock_differs"):
                    self._conditions.end(reason, sink=target.name)
        self._of = [(target, pusher) for target, pusher in self._of if target in targets]
        for target, sink, clock in new:
            self._clocks[target.name] = clock
            pusher = Pusher(target.name, sink, self._spool, self._writing, self._conditions, self._diagnostics)
            self._of.append((target, pusher))
            pusher.start()

    def end(self) -> None:
        for _, pusher in self._of:
            pusher.end()

    def numbers(self) -> Iterator[Number]:
        for target, pusher in list(self._of):
            sink = {"sink": target.name, "type": target.kind}
            segments, size, age_s = pusher.lag()
            yield "push_queue_segments", sink, segments
            yield "push_queue_bytes", sink, size
            yield "push_lag_seconds", sink, age_s
            yield "push_clock_ahead_seconds", sink, self._clocks[target.name].ahead_s
            yield "push_sent", sink, pusher.sent
            yield "push_lost", sink, self._spool.lost[target.name]
            for word, count in pusher.later.items():
                yield "push_failures", {**sink, "reason": word}, count
            for word, count in pusher.refused.items():
                yield "push_refused", {**sink, "reason": word}, count
