"""Times as people write them: "2h" ago, "yesterday 14:00", "today 14:00-15:00". They are local, and become nanoseconds
since the epoch.
"""

from __future__ import annotations

import datetime
import re

from pyprof.errors import UsageError
from pyprof.records import dataclass

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])(?:\s+ago)?")
_CLOCK = r"(\d{1,2}:\d\d(?::\d\d)?)"
_DAY = r"(?:(today|yesterday|\d{4}-\d\d-\d\d)\s+)?"
_MOMENT = re.compile(_DAY + _CLOCK)
_SPAN = re.compile(_DAY + _CLOCK + r"\s*-\s*" + _CLOCK)
_EXAMPLES = '2h, "14:00", "yesterday 14:00", "2026-11-22 14:00"'


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time that begins at start_ns and ends before end_ns, in nanoseconds since the epoch."""

    start_ns: int
    end_ns: int


def seconds(text: str) -> float | None:
    """Return the seconds of a duration such as "90s", "15m", "2h" or "7d"; None for other texts."""
    match = _AGO.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def moment(text: str, now: datetime.datetime) -> int:
    """Parse a point in time such as "2h" (ago) or "yesterday 14:00".

    Args:
        now: Current local time.

    Raises:
        UsageError: The text is not a point in time.
    """
    if text.strip() == "now":
        return _ns(now)
    if (ago := seconds(text)) is not None:
        try:
            return _ns(now - datetime.timedelta(seconds=ago))
        except (OverflowError, OSError):
            raise UsageError(f"{text!r} is before 1970", _EXAMPLES) from None
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time", _EXAMPLES)
    return _ns(_at(match[1], match[2], now))


def span(text: str, now: datetime.datetime) -> TimeSpan:
    """Parse a span of time such as "today 14:00-15:00". If its end is not after its start, it continues after midnight.

    Raises:
        UsageError: The text is not a span of time.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time span", '"yesterday 14:00-15:00"')
    start, end = (_at(match[1], clock, now) for clock in (match[2], match[3]))
    return TimeSpan(_ns(start), _ns(end if end > start else end + datetime.timedelta(days=1)))


def _at(day: str | None, clock: str, now: datetime.datetime) -> datetime.datetime:
    try:
        if day in (None, "today", "yesterday"):
            date = now.date() - datetime.timedelta(days=day == "yesterday")
        else:
            date = datetime.date.fromisoformat(str(day))
        return datetime.datetime.combine(
            date, datetime.time.fromisoformat(clock.zfill(5 if clock.count(":") == 1 else 8))
        )
    except ValueError as error:
        raise UsageError(f"{day or ''} {clock}: {error}".strip()) from None


def _ns(when: datetime.datetime) -> int:
    return round(when.timestamp() * 1_000_000) * 1000
