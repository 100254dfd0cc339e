"""Checks whether the server can do its work: the disk takes segments and the database answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pyprof.errors import PyprofError
from pyprof.model.reason_requests import REQUESTS

CHECK_INTERVAL_S = 5.0
"""Time between two health checks of the server, in seconds."""
DISK_FULL, STORE_FAILED = "disk_full", "store_failed"
FAILURES = (DISK_FULL, STORE_FAILED)
"""Reasons for which the server is unhealthy; each is a row of the table of reasons."""
_SENTENCES = {reason.name: reason.sentence for reason in REQUESTS}


class ServerHealth:
    """The failures that keep the server from its work; a thread checks for them.

    Methods may be called from any thread.
    """

    def __init__(self, checks: Mapping[str, Callable[[], None]], say: Callable[..., None]) -> None:
        """Create the server's health checks without running them.

        Args:
            checks: For each reason of FAILURES, a function that raises an error if it holds.
            say: Writes a line of the log.
        """
        self._checks = checks
        self._say = say
        self._failures: dict[str, str] = {}
        self._is_checked = threading.Event()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pyprof health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the health checks, without waiting for a check that hangs."""
        self._ending.set()

    @property
    def is_checked(self) -> bool:
        """True after all health checks have run once."""
        return self._is_checked.is_set()

    @property
    def failures(self) -> dict[str, str]:
        """The failures for which the server is unhealthy: a sentence by the name of each reason."""
        with self._lock:
            return dict(self._failures)

    def report_failure(self, reason: str, text: str = "") -> None:
        """Note that the server cannot do part of its work, for a reason of FAILURES."""
        with self._lock:
            is_new = reason not in self._failures
            self._failures[reason] = text or _SENTENCES[reason]
        if is_new:
            self._say("error", "unhealthy", reason=reason, error=text or _SENTENCES[reason])

    def report_success(self, reason: str) -> None:
        """Note that a reason for which the server was unhealthy no longer holds."""
        with self._lock:
            was_failing = self._failures.pop(reason, None) is not None
        if was_failing:
            self._say("info", "healthy again", reason=reason)

    def check_now(self) -> None:
        """Run each health check of the server once."""
        for reason, check in self._checks.items():
            try:
                check()
            except Exception as error:  # without this thread /healthz would never change again
                is_expected = isinstance(error, OSError | PyprofError)
                self.report_failure(reason, str(error) if is_expected else f"{type(error).__name__}: {error}")
            else:
                self.report_success(reason)
        self._is_checked.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.check_now()
            self._ending.wait(CHECK_INTERVAL_S)
