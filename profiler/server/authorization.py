"""Authorization: each tenant has tokens for reading and writing. A refusal is an exception with a named reason."""

from __future__ import annotations

import hmac

from pyprof.model.fleet_reasons import REQUESTS
from pyprof.records import dataclass

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
    "store_failed": 503,
    "disk_full": 507,
}
"""HTTP status of a refused request by its reason. An agent does not resend after 400, 409, 413 or 422, because a later
attempt would fail too.
"""


_SENTENCES = {reason.name: reason.sentence for reason in REQUESTS}


class Refused(Exception):
    """The server refuses a request, for a named reason.

    The text states the limit and the actual value.

    Attributes:
        reason: Name of its row in the table of reasons.
        status: HTTP status.
        retry_s: Seconds after which the client may try again, 0 for none.
    """

    def __init__(self, reason: str, text: str = "", retry_s: int = 0) -> None:
        self.reason, self.retry_s = reason, retry_s
        self.status = STATUS[reason]
        super().__init__(text or _SENTENCES[reason])


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant of the server and its token for each role; without a token no client has the role."""

    name: str
    tokens: dict[str, str]


class Access:
    """The check of tokens. Without tenants every client may do everything, as the tenant OPEN."""

    OPEN = "default"

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._tenants = tenants

    @property
    def is_open(self) -> bool:
        return not self._tenants

    def tenant(self, role: str, header: str, cookie: str = "") -> str:
        """Return the tenant whose token for a role an HTTP request has. Every token is compared in constant time.

        Args:
            header: The Authorization header.
            cookie: The token in the cookie.

        Raises:
            Refused: There is no token, or it is not valid for the role.
        """
        if not self._tenants:
            return self.OPEN
        kind, _, given = header.partition(" ")
        token = given.strip() if kind.lower() == "bearer" else cookie
        if not token:
            raise Refused("no_token")
        named, other = "", ""
        for tenant in self._tenants:
            for known_role, known in tenant.tokens.items():
                same = hmac.compare_digest(known.encode(), token.encode("utf-8", "replace"))
                named = tenant.name if same and known_role == role else named
                other = tenant.name if same and known_role != role else other
        if not named:
            raise Refused("wrong_role" if other else "wrong_token")
        return named
