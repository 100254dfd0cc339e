"""Queues of the agent's sinks (receivers of segments): one thread for each sink sends its oldest segment first.
Sampling never waits for a sink.

A sink's queue is a folder of hard links to segments, and this folder is authoritative: a segment is sent, then its link
is removed. An agent that is killed in between sends the segment again under the same name. A segment that cannot be
sent now stays in the queue within the spool's limits. A segment that the receiver refuses for good is moved to
refused/WORD/.

A new configuration restarts the sinks. The date of a receiver's responses shows how far its clock differs.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from pyprof.fleet.agent.health import Conditions
from pyprof.fleet.agent.push_sink_types import PushTarget, made
from pyprof.fleet.agent.spool import QUEUE, Spool
from pyprof.fleet.wire.push_response_verdicts import (
    LATER,
    REFUSED,
    NotSent,
    RefusedForGood,
    SegmentSink,
    cause_and_hint,
)
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.problem_counters import Diagnostics

_LOOK_S = 1.0
_FIRST_S, _MAX_S = 1.0, 300.0
_ODD = frozenset({"unavailable", "timeout", "nonsense", "otherwise"})
"""Kinds of failures whose cause may be the segment itself. After enough attempts the segment is moved to refused/."""
_TRIES = 6
"""Number of failed attempts to send a segment after which another segment is tried, to see whether the first one causes
the failure.
"""
SLOW_REQUEST_S = 10.0
"""Duration of a request in seconds from which on its sink counts as slow."""
MAX_BEHIND_S = 60.0
"""Time in seconds without an empty queue after which a sink counts as slow, unless it fails."""


class Pusher:
    """A thread that sends the queued segments of one sink.

    Attributes:
        sent: Number of segments sent.
        taken_at: Monotonic time at which the receiver last took a segment, None if it took none since the start.
        removed: Number of segments whose files were removed from the queue, and not by the spool.
        later: Numbers of failed attempts by reason.
        refused: Numbers of refused segments by reason.
    """

    def __init__(
        self,
        name: str,
        sink: SegmentSink,
        spool: Spool,
        writing: AbstractContextManager[object],
        conditions: Conditions,
        diagnostics: Diagnostics,
    ) -> None:
        """Create a sender of one sink's queue. start() starts its thread.

        Args:
            writing: Lock that is held while the spool is used, but never during a request.
            conditions: Conditions of the agent.
        """
        self.name = name
        self.sent = self.removed = 0
        self.taken_at: float | None = None
        self.later = dict.fromkeys(LATER, 0)
        self.refused = dict.fromkeys(REFUSED, 0)
        self._sink, self._spool, self._writing = sink, spool, writing
        self._conditions, self._diagnostics = conditions, diagnostics
        self._ending = threading.Event()
        self._draining = threading.Event()
        self._woken = threading.Event()
        self._failures = 0
        self._after_s = 0.0
        self._tried: tuple[SegmentName | None, int] = None, 0
        self._request_at = self._behind_at = math.inf
        self._request_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"pyprof push {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop sending segments, without waiting for the thread: the folder of an unreachable machine may block it
        forever. Unsent segments stay in the queue.
        """
        self._ending.set()
        self._woken.set()

    def drain(self) -> None:
        """Let the thread send the queue at once and end when the queue is empty or the sink does not accept a
        segment.
        """
        self._draining.set()
        self._woken.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, at most for the given seconds."""
        self._thread.join(timeout_s)

    def lag(self) -> tuple[int, int, float]:
        """Return (segments, bytes, seconds) of the sink's queue: its size, and the time since the end of its oldest
        window, 0 if it is empty.
        """
        with self._writing:
            place = self._spool.inventory.place(f"{QUEUE}/{self.name}")
            oldest_ns = place.oldest_ns
            return len(place.names), place.bytes, max(time.time() - oldest_ns / 1e9, 0.0) if oldest_ns else 0.0

    @property
    def request_s(self) -> float:
        """Duration in seconds of the sink's last request, or of the request under way if that has taken longer."""
        return max(self._request_s, time.monotonic() - self._request_at)

    @property
    def taken_ago_s(self) -> float | None:
        """Seconds since the receiver last accepted a segment, None if it has accepted none since the start."""
        return time.monotonic() - self.taken_at if self.taken_at is not None else None

    def check_speed(self) -> None:
        """Begin or end the sink's condition push_slow. The agent's main loop calls this, because a slow request blocks
        the thread of the sink.
        """
        behind_s = max(time.monotonic() - self._behind_at, 0.0)
        if self.request_s >= SLOW_REQUEST_S or behind_s >= MAX_BEHIND_S:
            figures: dict[str, object] = {
                "request_seconds": round(self.request_s, 1),
                "behind_seconds": round(behind_s),
            }
            self._conditions.begin("push_slow", "", "", sink=self.name, **figures)
        elif not self._failures:
            self._conditions.end("push_slow", sink=self.name)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._woken.wait(self.pause())
            is_last = self._draining.is_set()
            self.push()
            if is_last:
                break

    def pause(self) -> float:
        """Return the seconds until the next attempt to send a segment."""
        if not self._failures:
            return _LOOK_S
        backoff = min(_MAX_S, _FIRST_S * (1 << min(self._failures, 16))) * random.uniform(0.5, 1.0)
        return max(backoff, self._after_s * random.uniform(1.0, 1.1))

    def push(self) -> int:
        """Send the segments of the queue, oldest first, until one is not accepted. Return how many were sent."""
        before = self.sent
        while not self._ending.is_set():
            with self._writing:
                name = self._spool.inventory.place(f"{QUEUE}/{self.name}").first()
            if name is None:
                self._conditions.end("push_failing", sink=self.name)
                self._behind_at = math.inf
                break
            self._behind_at = min(self._behind_at, time.monotonic())
            if not self._tried_one(name):
                break
        return self.sent - before

    def _tried_one(self, name: SegmentName) -> bool:
        """Try to send one segment. Return False if the segment must wait for a later attempt."""
        try:
            self._push(name)
        except NotSent as error:
            return self._waits(name, error.word, str(error), error.after_s, error.stated)
        except OSError as error:
            return self._waits(name, "spool", f"{self._spool.root}: {error.strerror or type(error).__name__}")
        except Exception as error:  # noqa: BLE001 - if the thread ended, nothing more would be sent
            return self._waits(name, "otherwise", f"{type(error).__name__}: {error}")
        return True

    def _push(self, name: SegmentName) -> None:
        """Send one segment to the sink, or move it to the folder of refused segments.

        Raises:
            NotSent: The segment must wait.
            OSError: The spool cannot be read or changed.
        """
        data = self._read(name)
        if data is None:
            self._note_removed(name)
            return
        try:
            self._send(name, data)
        except RefusedForGood as error:
            self._set_aside(name, error.word, str(error), error.stated)
        else:
            self._gone(name)
            self.sent += 1
            self.taken_at = time.monotonic()
        self._goes_on()

    def _send(self, name: SegmentName, data: bytes) -> None:
        """Send a segment to the sink and measure how long that takes. Errors of SegmentSink.send() reach the caller, an
        OSError as NotSent: it is the disk of the sink.
        """
        self._request_at = began = time.monotonic()
        try:
            self._sink.send(name, data)
        except OSError as error:
            raise NotSent("disk", error.strerror or type(error).__name__) from error
        finally:
            self._request_at, self._request_s = math.inf, time.monotonic() - began

    def _gone(self, name: SegmentName) -> None:
        with self._writing:
            self._spool.sent(self.name, name)

    def _note_removed(self, name: SegmentName) -> None:
        """Remove a segment whose file is missing from the queue. The segment counts as lost, unless the spool itself
        has dropped and counted it.
        """
        with self._writing:
            is_lost = name in self._spool.inventory.place(f"{QUEUE}/{self.name}").names
            self._spool.sent(self.name, name)
        if is_lost:
            self.removed += 1
            error = f"{name.path} was removed from the spool before {self.name} had taken it"
            self._conditions.note("push_lost", error, "find out what removes files of the spool", sink=self.name)

    def _set_aside(self, name: SegmentName, word: str, about: str, stated: str = "") -> None:
        with self._writing:
            self._spool.refused(self.name, name, word)
            self._diagnostics.count(REFUSED[word])
        self.refused[word] += 1
        cause, hint = cause_and_hint(word, stated)
        self._conditions.note("push_refused", about, hint, sink=self.name, cause=cause, segment=name.path)

    def _goes_on(self) -> None:
        self._tried = None, 0
        self._after_s = 0.0
        self._failures = 0
        self._conditions.end("push_failing", sink=self.name)

    def _waits(self, name: SegmentName, word: str, about: str, after_s: float = 0.0, stated: str = "") -> bool:
        """Note a failed attempt to send a segment. Return True if the segment itself has caused the failures and was
        moved to refused/, and False if it must wait.
        """
        with self._writing:
            self._diagnostics.count(LATER[word])
        self.later[word] += 1
        before, tries = self._tried
        self._tried = name, tries + 1 if before == name and word in _ODD else int(word in _ODD)
        if self._tried[1] >= _TRIES and self._another_is_taken(name):
            self._set_aside(name, "never_taken", about)
            self._goes_on()
            return True
        if not self._ending.is_set():
            cause, hint = cause_and_hint(word, stated)
            self._conditions.begin("push_failing", about, hint, sink=self.name, cause=cause)
        self._failures += 1
        self._after_s, self._behind_at = after_s, math.inf
        return False

    def _another_is_taken(self, name: SegmentName) -> bool:
        with self._writing:
            other = next((each for each in self._spool.queued(self.name) if each != name), None)
        data = self._read(other) if other is not None else None
        if other is None or data is None:
            return False
        try:
            self._send(other, data)
        except Exception:  # noqa: BLE001
            return False
        self._gone(other)
        self.sent += 1
        return True

    def _read(self, name: SegmentName) -> bytes | None:
        """Read a queued segment, None if its file is gone.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            with open(f"{self._spool.root}/{QUEUE}/{self.name}/{name.path}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


MAX_DIFFERENCE_S = 30.0
"""Difference in seconds between the clocks of agent and receiver above which the agent warns. Windows carry the agent's
time, but queries use the server's time.
"""
Number = tuple[str, dict[str, str], float]
"""One value of a sink's metric: (name of the metric, its labels, its value)."""


class ReceiverClock:
    """A comparison of this machine's clock with the clock of one sink's receiver. ahead_s is the number of seconds by
    which this machine was ahead at the last response.
    """

    def __init__(self, sink: str, conditions: Conditions) -> None:
        """Create a comparison of clocks for the receiver of the sink with this name."""
        self.ahead_s = 0.0
        self._sink, self._conditions = sink, conditions
        self._stated_s = 0.0

    def compare(self, ahead_s: float) -> None:
        """Record by how many seconds this machine's clock is ahead of the receiver's, at a response. A change is
        logged.
        """
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
        """Start the sinks of a configuration. Sinks with unchanged settings continue. A sink with changed settings
        keeps its conditions until it has sent something or its queue is empty.

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
                if any(each.name == target.name for each in targets):
                    continue
                for reason in ("push_failing", "push_refused", "push_lost", "push_slow", "clock_differs"):
                    self._conditions.end(reason, sink=target.name)
        self._of = [(target, pusher) for target, pusher in self._of if target in targets]
        for target, sink, clock in new:
            self._clocks[target.name] = clock
            pusher = Pusher(target.name, sink, self._spool, self._writing, self._conditions, self._diagnostics)
            self._of.append((target, pusher))
            pusher.start()

    def finish(self, until: float) -> dict[str, int]:
        """Send the queues of all sinks at most until a monotonic time, and stop the sinks.

        Returns:
            The number of unsent segments, by the name of the sink, for sinks that have any.
        """
        for _, pusher in self._of:
            pusher.drain()
        for _, pusher in self._of:
            pusher.join(max(until - time.monotonic(), 0))
            pusher.end()
        return {target.name: count for target, pusher in self._of if (count := pusher.lag()[0])}

    def check_speed(self) -> None:
        """Begin or end the condition push_slow, which means slow requests or a long queue, of each sink."""
        for _, pusher in self._of:
            pusher.check_speed()

    def states(self) -> list[dict[str, object]]:
        """Return for each sink how many seconds ago its receiver accepted a segment, None if it has accepted none since
        the start.
        """
        return [
            {
                "sink": target.name,
                "type": target.kind,
                "taken_seconds_ago": round(ago_s) if (ago_s := pusher.taken_ago_s) is not None else None,
            }
            for target, pusher in list(self._of)
        ]

    def numbers(self) -> Iterator[Number]:
        for target, pusher in list(self._of):
            sink = {"sink": target.name, "type": target.kind}
            segments, size, age_s = pusher.lag()
            yield "push_queue_segments", sink, segments
            yield "push_queue_bytes", sink, size
            yield "push_lag_seconds", sink, age_s
            yield "push_request_seconds", sink, pusher.request_s
            yield "push_clock_ahead_seconds", sink, self._clocks[target.name].ahead_s
            yield "push_sent", sink, pusher.sent
            ago_s = pusher.taken_ago_s
            yield "push_taken_timestamp_seconds", sink, time.time() - ago_s if ago_s is not None else 0.0
            yield "push_lost", sink, self._spool.lost[target.name] + pusher.removed
            for word, count in pusher.later.items():
                yield "push_failures", {**sink, "reason": word}, count
            for word, count in pusher.refused.items():
                yield "push_refused", {**sink, "reason": word}, count
