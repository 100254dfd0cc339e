"""Verdicts about a sent segment from the response of its receiver: sent, refused for good, or to be sent later. One
table is for HTTP, one for gRPC. SegmentSink is the interface of a sink, which raises a verdict as an exception.

Each cause of failure has a word for metrics, the log and refused/WORD/ in the spool, and a reason in the table of
reasons (model/fleet_loss_reasons.py).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.fleet_loss_reasons import PUSH, REQUESTS

LATER = {
    word: f"push_later_{word}"
    for word in (
        *("unreachable", "timeout", "insecure", "credentials", "unauthorized", "not_there"),
        *("limited", "unavailable", "redirected", "nonsense", "disk", "spool", "no_package", "otherwise"),
    )
}
"""Causes of failures after which the segment is sent again later: a word for each, with its counter. The segment stays
in the queue.
"""
REFUSED = {
    word: f"push_refused_{word}"
    for word in (
        *("bad_request", "too_large", "too_old", "too_new"),
        *("too_many_series", "rejected", "unreadable", "never_taken"),
    )
}
"""Causes of failures after which a receiver will never accept the segment: a word for each, with its counter. The
segment is moved to refused/.
"""

_HINTS = {reason.name: reason.hint for reason in PUSH}
_SERVER_HINTS = {reason.name: reason.hint for reason in REQUESTS}


class PushVerdict(Enum):
    SENT = "sent"
    LATER = "later"
    REFUSED = "refused"


HTTP = {
    400: (PushVerdict.REFUSED, "bad_request"),
    401: (PushVerdict.LATER, "unauthorized"),
    403: (PushVerdict.LATER, "unauthorized"),
    404: (PushVerdict.LATER, "not_there"),
    405: (PushVerdict.LATER, "not_there"),
    407: (PushVerdict.LATER, "unauthorized"),
    408: (PushVerdict.LATER, "limited"),
    413: (PushVerdict.REFUSED, "too_large"),
    415: (PushVerdict.LATER, "not_there"),
    422: (PushVerdict.REFUSED, "unreadable"),
    425: (PushVerdict.LATER, "limited"),
    429: (PushVerdict.LATER, "limited"),
    501: (PushVerdict.LATER, "not_there"),
}
"""Verdicts about a sent segment by the HTTP status of the response. Other statuses are judged by their class. The
verdict LATER is for failures that affect all segments alike and are fixed at the receiver or in the configuration.
"""
_HTTP_CLASSES = {
    2: (PushVerdict.SENT, ""),
    3: (PushVerdict.LATER, "redirected"),
    5: (PushVerdict.LATER, "unavailable"),
}
GRPC = {
    "OK": (PushVerdict.SENT, ""),
    "INVALID_ARGUMENT": (PushVerdict.REFUSED, "bad_request"),
    "OUT_OF_RANGE": (PushVerdict.REFUSED, "bad_request"),
    "FAILED_PRECONDITION": (PushVerdict.REFUSED, "bad_request"),
    "DATA_LOSS": (PushVerdict.REFUSED, "unreadable"),
    "UNAUTHENTICATED": (PushVerdict.LATER, "unauthorized"),
    "PERMISSION_DENIED": (PushVerdict.LATER, "unauthorized"),
    "NOT_FOUND": (PushVerdict.LATER, "not_there"),
    "UNIMPLEMENTED": (PushVerdict.LATER, "not_there"),
    "RESOURCE_EXHAUSTED": (PushVerdict.LATER, "limited"),
    "DEADLINE_EXCEEDED": (PushVerdict.LATER, "timeout"),
    "UNAVAILABLE": (PushVerdict.LATER, "unavailable"),
    "INTERNAL": (PushVerdict.LATER, "unavailable"),
    "ABORTED": (PushVerdict.LATER, "unavailable"),
}
"""Verdicts about a sent segment by the name of the response's grpc.StatusCode."""


class NotSent(Exception):
    """A segment was not sent and must be sent later.

    Attributes:
        word: The reason, a key of LATER.
        stated: The name of the reason that the receiver gave, "" for none.
        after_s: The requested wait in seconds, 0 for none.
    """

    def __init__(self, word: str, about: str = "", after_s: float = 0.0, stated: str = "") -> None:
        super().__init__(about or word)
        self.word, self.after_s, self.stated = word, after_s, stated


class RefusedForGood(Exception):
    """A receiver will never accept a segment. `word` is a key of REFUSED, `stated` the name of the reason that the
    receiver gave.
    """

    def __init__(self, word: str, about: str = "", stated: str = "") -> None:
        super().__init__(about or word)
        self.word, self.stated = word, stated


def cause_and_hint(word: str, stated: str = "") -> tuple[str, str]:
    """Return the cause of a failed push and a hint. If pyprof's server stated a reason, they are those of the reason,
    otherwise those of the word.

    Args:
        word: A key of LATER or REFUSED.
        stated: The name of the reason that the receiver gave, "" for none. It is untrusted.
    """
    hint = _HINTS[LATER.get(word) or REFUSED[word]]
    if stated in _SERVER_HINTS:
        return stated, _SERVER_HINTS[stated] or hint
    return word, hint


REASONS = {
    "disk_full": (PushVerdict.LATER, "unavailable"),
    "store_failed": (PushVerdict.LATER, "unavailable"),
    "too_old": (PushVerdict.REFUSED, "too_old"),
    "too_new": (PushVerdict.REFUSED, "too_new"),
    "too_many_series": (PushVerdict.REFUSED, "too_many_series"),
    "wrong_name": (PushVerdict.REFUSED, "bad_request"),
}
"""Verdicts about a sent segment by the name of the reason that pyprof's own server gives. Reasons that are not listed
are judged by the HTTP status.
"""


@dataclass(frozen=True, slots=True)
class StatedReason:
    """The reason that a receiver gives for a refusal.

    Attributes:
        name: A machine-readable name such as disk_full, "" if the receiver gave none.
        text: A sentence, "" if the receiver gave none.
    """

    name: str = ""
    text: str = ""


NO_REASON = StatedReason()


def judge_http(status: int, after_s: float = 0.0, stated: StatedReason = NO_REASON) -> None:
    """Judge the HTTP response of a receiver: return if it says that the receiver has the segment, raise an error
    otherwise.

    Args:
        status: The status of the HTTP response.
        after_s: The wait that the receiver requests, in seconds.
        stated: The reason that the receiver gave.

    Raises:
        NotSent: The segment stays in the queue.
        RefusedForGood: The segment is moved to refused/.
    """
    about = f"{stated.name}: {stated.text}" if stated.text else stated.name
    found = REASONS.get(stated.name) or HTTP.get(status) or _HTTP_CLASSES.get(status // 100)
    _judge(found, f"status {status}{f', {about}' if about else ''}", after_s, stated.name)


def judge_grpc(code: str) -> None:
    """Judge the gRPC response of a receiver by the name of its grpc.StatusCode: return if the segment was accepted,
    raise an error otherwise.

    Raises:
        NotSent: The segment stays in the queue.
        RefusedForGood: The segment is moved to refused/.
    """
    _judge(GRPC.get(code), f"status {code}")


def _judge(found: tuple[PushVerdict, str] | None, about: str, after_s: float = 0.0, stated: str = "") -> None:
    verdict, word = found or (PushVerdict.LATER, "otherwise")
    if verdict is PushVerdict.LATER:
        raise NotSent(word, about, after_s, stated)
    if verdict is PushVerdict.REFUSED:
        raise RefusedForGood(word, about, stated)


class SegmentSink(Protocol):
    def send(self, name: SegmentName, data: bytes) -> bool | None:
        """Send a segment, and return when the receiver has stored it.

        The same segment may be sent a second time, after a crash or if a response was lost.

        Returns:
            False if the receiver had the segment already, None if that is not known.

        Raises:
            NotSent: The segment must be sent later.
            RefusedForGood: The receiver will never accept the segment.
            OSError: Writing failed.
        """
