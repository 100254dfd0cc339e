"""Writes refused requests to the log, one line a minute for each reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

INTERVAL_S = 60.0
"""Minimum time between two log lines about the same reason for refusals, in seconds."""
ACCESS_REASONS = frozenset({"no_token", "wrong_token", "wrong_role"})
"""Reasons of refused requests that are logged for each client address."""
UNLOGGED = frozenset(
    {"segment_known", "bad_question", "no_such_page", "nothing_there", "question_too_dear", "store_failed"}
)
"""Reasons of refused requests that are not logged: those that only the client needs to know, and a failure that the
health check logs.
"""
_MAX_CLIENTS = 256


class RefusalLog:
    """Rate-limited log lines about refused requests. It may be used from any thread."""

    def __init__(self, say: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def note_refusal(self, reason: str, text: str, client: str) -> None:
        """Log a refused request, or count it if the last line about its reason is recent.

        Args:
            reason: The refusal's row of the table of reasons.
            text: The sentence of the answer.
            client: The address of the client, without its port.
        """
        if reason in UNLOGGED:
            return
        now = self._clock()
        with self._lock:
            key = reason, client if reason in ACCESS_REASONS and len(self._lines) < _MAX_CLIENTS else ""
            if (reason, client) in self._lines:
                key = reason, client
            last, unlogged = self._lines.get(key, (now - INTERVAL_S, 0))
            is_due = now - last >= INTERVAL_S
            self._lines[key] = (now, 0) if is_due else (last, unlogged + 1)
            if is_due and len(self._lines) >= _MAX_CLIENTS:
                self._lines = {each: line for each, line in self._lines.items() if now - line[0] < INTERVAL_S}
        if is_due:
            more = {"unlogged_before": unlogged} if unlogged else {}
            self._say("warning", "request refused", reason=reason, error=text, client=client, **more)
