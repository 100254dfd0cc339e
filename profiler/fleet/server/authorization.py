"""Authorization: each tenant has tokens for reading and writing. A refusal is an exception with a named reason, and is
logged.

The log has one line a minute for each reason.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable

from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.fleet_loss_reasons import REQUESTS

WRITE, READ = "write", "read"
COOKIE = "pyprof_token"
STATUS = {
    "bad_question": 400,
    "bad_segment": 400,
    "bad_symbols": 400,
    "no_token": 401,
    "wrong_token": 401,
    "wrong_role": 403,
    "no_such_page": 404,
    "nothing_there": 404,
    "body_too_slow": 408,
    "segment_known": 409,
    "body_too_large": 413,
    "wrong_name": 422,
    "too_old": 422,
    "too_new": 422,
    "too_many_series": 422,
    "too_many_symbols": 422,
    "question_too_dear": 422,
    "too_many_requests": 429,
    "starting": 503,
    "store_failed": 503,
    "store_rebuilding": 503,
    "disk_full": 507,
}
"""HTTP status of a refused request by the reason for the refusal. An agent does not send a segment again after 400,
409, 413 or 422, because a later attempt would fail too.
"""


_ROWS = {reason.name: reason for reason in REQUESTS}


class Refused(Exception):
    """The server refuses a request for a named reason.

    The text states the limit and the actual value.

    Attributes:
        reason: Name of its row in the table of reasons.
        hint: What helps, "" if nothing is known.
        status: HTTP status.
        retry_s: Seconds after which the client may try again, 0 for none.
    """

    def __init__(self, reason: str, text: str = "", retry_s: int = 0) -> None:
        self.reason, self.retry_s = reason, retry_s
        self.status, self.hint = STATUS[reason], _ROWS[reason].hint
        super().__init__(text or _ROWS[reason].sentence)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant of the server with its token for each role. If a role has no token, no client has the role."""

    name: str
    tokens: dict[str, str]


class Access:
    """The check that a request has the token of a tenant. On a server without tenants any client may do everything, as
    the tenant OPEN.
    """

    OPEN = "default"

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._tenants = tenants

    def change_tenants(self, tenants: tuple[Tenant, ...]) -> None:
        """Use other tenants and tokens from now on. Any thread may call this.

        Raises:
            UsageError: The server would become open, or would no longer be open, for which it must be restarted.
        """
        if bool(tenants) != bool(self._tenants):
            raise UsageError("the first [[tenant]] was added, or the last one removed", "restart the server for that")
        self._tenants = tenants

    @property
    def is_open(self) -> bool:
        return not self._tenants

    def tenant(self, role: str, header: str, cookie: str = "") -> str:
        """Return the tenant to whom the token in an HTTP request belongs, if the token permits the role. Tokens are
        compared in constant time.

        Args:
            header: The Authorization header.
            cookie: The token in the cookie.

        Raises:
            Refused: There is no token, or it is not valid for the role.
        """
        tenants = self._tenants
        if not tenants:
            return self.OPEN
        kind, _, given = header.partition(" ")
        token = given.strip() if kind.lower() == "bearer" else cookie
        if not token:
            raise Refused("no_token")
        named, other = "", ""
        for tenant in tenants:
            for known_role, known in tenant.tokens.items():
                same = hmac.compare_digest(known.encode(), token.encode("utf-8", "replace"))
                named = tenant.name if same and known_role == role else named
                other = tenant.name if same and known_role != role else other
        if not named:
            raise Refused("wrong_role" if other else "wrong_token")
        return named


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
    """A log of refused requests with a limited rate of lines. It may be used from any thread."""

    def __init__(self, say: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def note_refusal(self, reason: str, text: str, client: str) -> None:
        """Log a refused request. If the last line about the same reason is recent, only count the request.

        Args:
            reason: Name of the reason in the table of reasons.
            text: The sentence that the client receives.
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
