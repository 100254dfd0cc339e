"""Configuration files of the agent and the server: reading, kinds of settings and their checks, times.

The files are TOML that only their owner may write. Errors are reported with their lines.
"""

from __future__ import annotations

import datetime
import os
import re
import stat
import tomllib
from typing import Any

from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.thread_identity import labels_of
from pyprof.objfile.byte_source import open_regular
from pyprof.options import NATIVE_VIEWS, SIMPLE_MODES

_MAX_BYTES = 1 << 20
_MAX_DOTS = 1000
"""Maximum number of dots in a line of a configuration file: the time of tomllib grows with the square of the number of
a key's parts.
"""
_TOML_TABLE = re.compile(r"Cannot declare \((.*)\) twice")
_TOML_KEY = r"'([^']*)'"
_TOML_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, order=True)
class ConfigError:
    """An error in a configuration file: its line, counted from 1, and a text."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class BadConfig(UsageError):
    """A configuration file has errors, which are sorted by line."""

    def __init__(self, name: str, errors: list[ConfigError]) -> None:
        self.errors = sorted(errors)
        more = f" ({len(errors)} errors)" if len(errors) > 1 else ""
        super().__init__(f"{name}, {self.errors[0]}{more}", "--check --config FILE lists all of them")


def read(path: str) -> str:
    """Read a configuration file of the agent or the server.

    Raises:
        UsageError: The file cannot be read, or root would read a file that other users may write.
    """
    try:
        with open(open_regular(path), "rb") as file:
            found = os.fstat(file.fileno())
            if os.geteuid() == 0 and (found.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
                raise UsageError(f"users other than root may write {path}", f"chown root {path}; chmod go-w {path}")
            return file.read(_MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        raise UsageError(f"{path} cannot be read: {reason}", "--print-config > FILE writes a first one") from None


def document(text: str, name: str) -> dict[str, Any]:
    """Parse the TOML text of a configuration file into its tables.

    Args:
        name: Name of the file.

    Raises:
        BadConfig: The text is not TOML.
    """
    for number, each in enumerate(text.split("\n"), 1):
        if each.count(".") > _MAX_DOTS:
            raise BadConfig(name, [ConfigError(number, f"there are more than {_MAX_DOTS:,} dots in it")])
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number with thousands of digits
        match = _TOML_LINE.search(str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        raise BadConfig(name, [ConfigError(line, _toml_problem(_TOML_LINE.sub("", str(error))))]) from None


def _toml_problem(text: str) -> str:
    """Convert an error message of tomllib to one that names the table of the configuration file."""
    table = _TOML_TABLE.fullmatch(text)
    if table:
        return f"the table [{'.'.join(re.findall(_TOML_KEY, table[1]))}] is declared twice"
    return "a key is set twice" if text == "Cannot overwrite a value" else text


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
    """Parse a duration such as "90s", "15m", "2h" or "7d", and return it in seconds; None for other texts."""
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


_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MAX_HEADERS, _MAX_HEADER = 20, 1000
MAX_AGENT_RATE_HZ = 1000
"""Maximum rate of continuous recordings, in samples a second for each thread."""
COLLECTORS = ("auto", "perf", "ptrace", "bpf")


class Wrong(ValueError):
    """The value of a setting is invalid. The text says which values are valid."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a configuration file.

    Attributes:
        kind: Kind of value, such as SPAN or SIZE, by which checked() parses it.
        default: The default value as it is written in the file, "" for none.
    """

    table: str
    name: str
    kind: str
    default: str
    help: str


def checked(kind: str, value: object) -> object:
    """Check and convert the value of a setting; raise Wrong if it is invalid."""
    if kind in ("TEXT", "TEMPLATE"):
        if not isinstance(value, str) or not value or not value.isprintable():
            raise Wrong("is not a text")
        return value
    if kind in _TEXTS:
        pattern, meaning = _TEXTS[kind]
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise Wrong(meaning)
        return value
    if kind == "LABELS":
        return _labels(value)
    if kind == "HEADERS":
        return _headers(value)
    if kind == "MODES":
        modes = value if isinstance(value, list) else [value]
        if not modes or not all(mode in SIMPLE_MODES for mode in modes):
            raise Wrong(f"is not a list of {', '.join(SIMPLE_MODES)}")
        return tuple(dict.fromkeys(modes))
    if kind in _CHOICES:
        if value not in _CHOICES[kind]:
            raise Wrong(f"is not one of {', '.join(_CHOICES[kind])}")
        return value
    return _number(kind, value)


LABEL_NAME = r"[A-Za-z_][A-Za-z0-9_./-]{0,99}"
"""Pattern of valid label names in a configuration: queries, templates and receivers can use only such names."""
SINK_NAME = r"[a-z0-9][a-z0-9_-]{0,39}"
_TEXTS = {
    "NAME": (SINK_NAME, "is not a name of a-z, 0-9, _ and -, at most 40 letters"),
    "GROUP": (r"[A-Za-z0-9_][A-Za-z0-9_-]{0,31}", "is no name or number of a group"),
    "PATH": (r"/[^\0\n]{0,999}", "is not an absolute path"),
    "URL": (
        r"https?://[^\s/@?#]+(?:/[^\s@?#]*)?",
        "is no http:// or https:// address without user, ? and #; secrets have files",
    ),
    "BUCKET": (r"[a-z0-9]+://[^\s@?#]+", "is no address such as s3://bucket/prefix; keys stand elsewhere"),
}

_CHOICES: dict[str, tuple[str, ...]] = {
    "VIEW": tuple(NATIVE_VIEWS),
    "COLLECTOR": COLLECTORS,
    "SINK": ("pyprof", "pyroscope", "otlp", "parca", "folder", "bucket"),
    "PROTOCOL": ("http", "grpc"),
    "API": ("push", "ingest"),
    "ACTION": ("include", "exclude"),
}


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong('is not { name = "text" }')
    for name in value:
        if not re.fullmatch(LABEL_NAME, name):
            raise Wrong(
                f"has the name {name!r}: names are a-z, A-Z, 0-9, _ . / -, at most 100, and begin with a-z, A-Z, _"
            )
    try:
        return dict(labels_of(value))
    except ValueError as error:
        raise Wrong(f"is not usable: {error}") from None


def _headers(value: object) -> dict[str, str]:
    """Check HTTP headers in a configuration. Headers that usually contain secrets are refused, because a configuration
    must not contain any.
    """
    if not isinstance(value, dict) or len(value) > _MAX_HEADERS:
        raise Wrong('is not { name = "text" }')
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) or not isinstance(text, str) or not text.isascii():
            raise Wrong('is not { name = "text" }')
        if not text.isprintable() or len(text) > _MAX_HEADER:
            raise Wrong("has a text that is not printable, or too long")
        if re.search(r"authori[sz]ation|cookie|secret|token|password|api-?_?key", name, re.IGNORECASE):
            raise Wrong(f"has {name}: secrets stand in files, token_file or password_file")
    return dict(value)


def _number(kind: str, value: object) -> float | int:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "SPAN":
        found = seconds(value) if isinstance(value, str) else None
        if found is None or not 1 <= found <= 3660 * 86_400:
            raise Wrong('is not a time such as "60s", "2h", "14d"')
        return found
    if kind == "SIZE":
        size = _size(value)
        if size is None or size < 1 << 20:
            raise Wrong('is not a size from "1M" on, such as "500M" or "2G"')
        return size
    if kind == "PORT":
        if not isinstance(number, int) or not 1 <= number <= 65535:
            raise Wrong("is not a port from 1 to 65535")
        return number
    least, most = {"COUNT": (1, 10**7), "RATE": (0, MAX_AGENT_RATE_HZ), "PERCENT": (0, 100)}[kind]
    if number is None or not least <= number <= most or not number or (kind == "COUNT" and not isinstance(value, int)):
        raise Wrong(f"is not a number above 0, at most {most:g}" if kind != "COUNT" else "is not a number of files")
    return number


def _size(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not value[:-1].isascii() or not value[:-1].isdigit():
        return None
    return int(value[:-1]) * _SIZES[value[-1].upper()] if value[-1].upper() in _SIZES and len(value) < 12 else None
