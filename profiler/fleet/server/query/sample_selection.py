"""The selection of samples by a query's parameters. All texts come from clients."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from pyprof.fleet.server.authorization import Refused
from pyprof.lazy_dataclasses import dataclass

LABEL = "label."
"""Prefix of the parameters of a query that select samples by labels."""
_WORDS = {"from", "to", "service", "type"}
_LONGEST = 1000
_MAX_LABELS = 20
_MAX_S = 1 << 33


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """The samples that a query selects: tenant, services, labels, span of time.

    Attributes:
        from_ns: Windows must end after this time since the epoch.
        to_ns: Windows must not end after this time.
        service: Name of the service, "" for all services.
        labels: Labels that samples must have.
    """

    tenant: str
    type: str
    from_ns: int
    to_ns: int
    service: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def days(self) -> tuple[str, str]:
        first, last = (time.strftime("%Y-%m-%d", time.gmtime(ns // 10**9)) for ns in (self.from_ns, self.to_ns))
        return first, last

    @property
    def length_ns(self) -> int:
        return self.to_ns - self.from_ns


def check_words(words: Iterable[str], own: Collection[str], sides: Iterable[str]) -> None:
    """Check that all parameter names of a query are known.

    Args:
        own: Parameters of the query (query_api.py).
        sides: Prefixes of the parameters of the query's selections, such as "a.".

    Raises:
        Refused: A parameter is not known.
    """
    for word in words:
        parts = [word.removeprefix(side) for side in sides if word.startswith(side)]
        chosen = any(part in _WORDS or (LABEL in own and part.startswith(LABEL)) for part in parts)
        if not chosen and (word not in own or word == LABEL):
            raise Refused("bad_question", f"unknown parameter {word[:40]!r}; {_known(own, sides)}")


def _known(own: Collection[str], sides: Iterable[str]) -> str:
    """Return the part of an error message that lists the parameters which a query accepts."""
    found = {f"{side}{word}" for side in sides for word in _WORDS} | {word for word in own if word != LABEL}
    labels = {f"{side}{LABEL}NAME" for side in sides} if LABEL in own else set()
    return f"this query takes {', '.join(sorted(found | labels))}"


def selection(tenant: str, words: Mapping[str, str], prefix: str = "") -> SampleQuery:
    """Parse the selection of samples from a query's parameters.

    Args:
        prefix: Prefix of the parameters of one side ("a.").

    Raises:
        Refused: A parameter is wrong.
    """

    def word(name: str) -> str:
        found = words.get(prefix + name, "")
        if len(found) > _LONGEST:
            raise Refused(
                "bad_question", f"{prefix}{name} has {len(found):,} characters; at most {_LONGEST:,} are allowed"
            )
        return found

    labels = [(key[len(prefix + LABEL) :], word(key[len(prefix) :])) for key in words if key.startswith(prefix + LABEL)]
    if len(labels) > _MAX_LABELS:
        raise Refused("bad_question", f"there are {len(labels)} labels; at most {_MAX_LABELS} are allowed")
    from_ns, to_ns = (_moment(prefix + name, word(name)) for name in ("from", "to"))
    if from_ns >= to_ns:
        raise Refused("bad_question", f"{prefix}from is not before {prefix}to")
    return SampleQuery(tenant, word("type") or "cpu", from_ns, to_ns, word("service"), tuple(sorted(labels)))


def _moment(name: str, text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        raise Refused("bad_question", f"{name} is not a number of seconds since 1970") from None
    if not 0 <= seconds <= _MAX_S:
        raise Refused("bad_question", f"{name} is not between 0 and {_MAX_S:,} seconds since 1970")
    return int(seconds * 1e9)


def whole_number(words: Mapping[str, str], name: str, otherwise: int, most: int) -> int:
    """Parse a query's parameter as an integer from 1 to `most`.

    Raises:
        Refused: The parameter is not such a number.
    """
    text = words.get(name, "") or str(otherwise)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Refused("bad_question", f"{name} is not a number from 1 to {most:,}")
    return int(text)
