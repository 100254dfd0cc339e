"""All sinks of the agent: started again with a new configuration, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from pyprof.agent.push.pusher import Pusher
from pyprof.agent.push.receiver_clock import ReceiverClock
from pyprof.agent.push.sink_types import PushTarget, made
from pyprof.agent.spool import Spool
from pyprof.diagnostics import Diagnostics

Number = tuple[str, dict[str, str], float]
"""(name of a metric, its labels, its value)."""


class Pushers:
    """The sinks and their queues; writing and say are those of Pusher."""

    def __init__(
        self,
        spool: Spool,
        writing: AbstractContextManager[object],
        say: Callable[..., None],
        diagnostics: Diagnostics,
    ) -> None:
        self._spool, self._writing, self._say, self._diagnostics = spool, writing, say, diagnostics
        self._of: list[tuple[PushTarget, Pusher]] = []
        self._clocks: dict[str, ReceiverClock] = {}

    def begin(self, targets: Sequence[PushTarget]) -> None:
        """Start the sinks of a configuration. Unchanged ones continue.

        Raises:
            UsageError: A sink cannot be created; then nothing has changed.
        """
        known = [target for target, _ in self._of]
        clocks = {target.name: ReceiverClock(target.name, self._say) for target in targets if target not in known}
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
        self._of = [(target, pusher) for target, pusher in self._of if target in targets]
        for target, sink, clock in new:
            self._clocks[target.name] = clock
            pusher = Pusher(target.name, sink, self._spool, self._writing, self._say, self._diagnostics)
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
            for word, count in pusher.later.items():
                yield "push_failures", {**sink, "reason": word}, count
            for word, count in pusher.refused.items():
                yield "push_refused", {**sink, "reason": word}, count
