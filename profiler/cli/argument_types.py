"""Types of command-line values; a wrong value is one sentence with exit code 2."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING

from pyprof.errors import UsageError
from pyprof.exporters import registry
from pyprof.frame_sources import SCAN
from pyprof.options import DEFAULT_SOURCES, KNOWN_SOURCES, UnwindOptions

if TYPE_CHECKING:
    import datetime

    from pyprof.exporters.base import Exporter

DEFAULT = "default"
_DAY_S = 24 * 3600.0


def add_sandbox(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--sandbox",
        action=argparse.BooleanOptionalAction,
        help="parse untrusted files in an unprivileged, seccomp-confined process (default: no; docs/security.md)",
    )


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below a million, without a unit")
    return value


def percent(text: str) -> float:
    value = positive(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 100 percent")
    return value


def percentage(text: str) -> float:
    """Parse a percentage such as "5%" or "5" and return it as a fraction (0.05)."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage, such as 5%")
    return value / 100


def positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def duration(text: str) -> float:
    """Parse a time with the unit s, ms or us, and return it in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)(s|ms|us)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 1ms, 200us or 0.5s")
    return float(found[1]) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[found[2]]


def regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def label(text: str) -> tuple[str, str]:
    """Parse a label of the form NAME=VALUE to (name, value)."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def moment(text: str) -> float | datetime.time:
    """Parse a point in time: seconds since the beginning of the recording, or a time of day without a zone."""
    import datetime

    try:
        found = datetime.time.fromisoformat(text) if ":" in text else float(text)
    except ValueError:
        found = math.nan
    if found.tzinfo if isinstance(found, datetime.time) else math.isnan(found):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seconds nor a local time of day")
    return found


def seconds_since(when: float | datetime.time, start_ns: int, duration_ns: int) -> float:
    """Convert a point in time to seconds since the beginning of a recording.

    A time of day is local. It means the one within the recording, which may continue after midnight, or else the
    nearest one.
    """
    if isinstance(when, float):
        return when
    import datetime

    begin = datetime.datetime.fromtimestamp(start_ns / 1e9)
    first = (datetime.datetime.combine(begin.date(), when) - begin).total_seconds()
    duration_s = duration_ns / 1e9
    return min((first, first + _DAY_S), key=lambda at: max(-at, at - duration_s, 0.0))


def chosen_format(name: str | None, output: str) -> Exporter:
    """Return the output format that --format names, else the one of the output's suffix; collapsed for standard output.

    Raises:
        UsageError: There is no such format, or it is binary and the output is standard output.
    """
    if name:
        exporter: Exporter = registry.find_format(name, output)
    elif output == "-":
        exporter = registry.find_format("collapsed")
    else:
        found = registry.find_format_for_file(output)
        if found is None:
            suffixes = " ".join(entry.suffixes[0] for entry in registry.FORMATS)
            raise UsageError(f"the name {output} does not say which format to write", f"-f FORMAT, or {suffixes}")
        exporter = found
    if output == "-" and not exporter.text:
        raise UsageError(f"{exporter.name} is not text: it needs a file", "-o FILE, or -f collapsed")
    return exporter


def bytes_size(text: str) -> int:
    """Parse a number of bytes, optionally with the suffix K, M or G."""
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:].lower(), 1)
    number = text[:-1] if scale > 1 else text
    if not number.isascii() or not number.isdigit() or not 4096 <= int(number) * scale <= 1 << 30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size between 4K and 1G")
    return int(number) * scale


def unwind_options(arguments: argparse.Namespace) -> UnwindOptions:
    """Return the unwind options given by --unwind, --scan, --max-depth and --symbols.

    Raises:
        UsageError: Unwinding by Breakpad symbol files is wanted, but no files are given.
    """
    sources, symbols = arguments.unwind, tuple(arguments.symbols)
    if arguments.scan:
        sources = tuple(dict.fromkeys((*sources, SCAN)))
    if "breakpad" in sources and not set(DEFAULT_SOURCES) <= set(sources) and not symbols:
        raise UsageError("--unwind breakpad needs symbol files", "--symbols PATH|URL")
    return UnwindOptions(sources=sources, max_depth=arguments.max_depth, symbols=symbols)


def source_list(text: str) -> tuple[str, ...]:
    """Parse a list of names of unwind sources; "default" stands for the default sources."""
    words = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    names = tuple(dict.fromkeys(name for word in words for name in (DEFAULT_SOURCES if word == DEFAULT else (word,))))
    unknown = [name for name in names if name not in KNOWN_SOURCES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: the sources are {', '.join(KNOWN_SOURCES)}")
    return names
