"""Arguments that several commands share: types of values, and groups of options. A wrong value is reported in one
sentence, with exit code 2.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING

from pyprof.errors import UsageError
from pyprof.exporters import registry
from pyprof.options import (
    DEFAULT_NATIVE,
    DEFAULT_SOURCES,
    KNOWN_SOURCES,
    NATIVE_VIEWS,
    SCAN,
    TargetOptions,
    UnwindOptions,
)

if TYPE_CHECKING:
    import datetime

    from pyprof.exporters.base import Exporter
    from pyprof.model.profile import Profile
    from pyprof.options import RemoteOptions


DEFAULT = "default"
_DAY_S = 24 * 3600.0


def add_sandbox(parser: argparse.ArgumentParser | argparse._ArgumentGroup, prefix: str = "") -> None:
    parser.add_argument(
        "--sandbox",
        action=argparse.BooleanOptionalAction,
        help=f"{prefix}parse untrusted files in an unprivileged, seccomp-confined process "
        "(default: no; docs/security.md)",
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
    """Parse a label of the form NAME=VALUE, and return (name, value)."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def moment(text: str) -> float | datetime.time:
    """Parse a point in time for a filter: seconds since the beginning of the recording, or a local time of day such as
    14:03.
    """
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

    A local time of day means its occurrence within the recording, which may continue after midnight. If it is not
    within the recording, the nearest occurrence is meant.
    """
    if isinstance(when, float):
        return when
    import datetime

    begin = datetime.datetime.fromtimestamp(start_ns / 1e9)
    first = (datetime.datetime.combine(begin.date(), when) - begin).total_seconds()
    duration_s = duration_ns / 1e9
    return min((first, first + _DAY_S), key=lambda at: max(-at, at - duration_s, 0.0))


def chosen_format(name: str | None, output: str) -> Exporter:
    """Return the output format that --format names, otherwise the format of the output's suffix. For standard output,
    the default is collapsed stacks.

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
    """Return the unwind options that --unwind, --scan, --max-depth and --symbols state.

    Raises:
        UsageError: The options request unwinding by Breakpad symbol files, but name no files.
    """
    sources, symbols = arguments.unwind, tuple(arguments.symbols)
    if arguments.scan:
        sources = tuple(dict.fromkeys((*sources, SCAN)))
    if "breakpad" in sources and not set(DEFAULT_SOURCES) <= set(sources) and not symbols:
        raise UsageError("--unwind breakpad needs symbol files", "--symbols PATH|URL")
    return UnwindOptions(sources=sources, max_depth=arguments.max_depth, symbols=symbols)


def source_list(text: str) -> tuple[str, ...]:
    """Parse a list of unwind sources, such as "eh_frame,fp". The name "default" stands for the default sources."""
    words = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    names = tuple(dict.fromkeys(name for word in words for name in (DEFAULT_SOURCES if word == DEFAULT else (word,))))
    unknown = [name for name in names if name not in KNOWN_SOURCES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: the sources are {', '.join(KNOWN_SOURCES)}")
    return names


CRITERIA = ("thread", "process", "pid", "tid", "function", "exclude", "module", "label")
"""Names of the options that choose samples. Each is also the name of the criterion of Profile.filter() that it sets."""


NATIVE_HELP = (
    f"native frames that are shown in stacks with Python, Java or JavaScript functions (default: {DEFAULT_NATIVE}). "
    + "; ".join(f"{name}: {words}" for name, words in NATIVE_VIEWS.items())
)
GDB_HELP = "record the target of the GDB stub at HOST:PORT or unix:PATH"


def add_criteria(what: argparse._ArgumentGroup) -> None:
    what.add_argument("--thread", type=regex, metavar="REGEX", help="threads whose name matches")
    what.add_argument("--process", type=regex, metavar="REGEX", help="processes whose name matches")
    what.add_argument(
        "-p", "--pid", type=positive_int, action="append", metavar="PID", help="processes; may be repeated"
    )
    what.add_argument("--tid", type=positive_int, action="append", metavar="TID", help="threads; may be repeated")
    what.add_argument(
        "--function",
        "--include",
        type=regex,
        metavar="REGEX",
        help="stacks that contain a function whose name matches",
    )
    what.add_argument("--exclude", type=regex, metavar="REGEX", help="without stacks that contain such a function")
    what.add_argument(
        "--label",
        type=label,
        action="append",
        metavar="NAME=VALUE",
        help="samples with this label; with several values of one name, any of them",
    )
    what.add_argument(
        "--module",
        type=regex,
        metavar="REGEX",
        help="stacks that contain code of a matching file (of Python: a script)",
    )


def chosen(profile: Profile, arguments: argparse.Namespace) -> Profile:
    """Return a profile with only the samples that the filter options on the command line select."""
    criteria = {name: getattr(arguments, name) for name in CRITERIA}
    if arguments.label is not None:
        criteria["label"] = {name: {v for n, v in arguments.label if n == name} for name, _ in arguments.label}
    return profile.filter(**criteria) if any(each is not None for each in criteria.values()) else profile


def add_python(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("frames of Python, Java and JavaScript")
    group.add_argument("--native", choices=NATIVE_VIEWS, default=DEFAULT_NATIVE, help=NATIVE_HELP)
    group.add_argument(
        "--async",
        dest="follow_tasks",
        action="store_true",
        help="asyncio: show the coroutines of awaiting tasks as callers of a task's coroutine (CPython 3.14 and later)",
    )
    group.add_argument("--gil", action="store_true", help="Python: only samples of threads that hold the GIL")


def add_remote(parser: argparse.ArgumentParser) -> None:
    remote = parser.add_argument_group("a target behind a GDB stub (gdbserver, qemu, OpenOCD, J-Link)")
    remote.add_argument("--gdb", metavar="HOST:PORT", help=GDB_HELP)
    remote.add_argument("--exe", metavar="FILE", help="the program's file on this machine")
    remote.add_argument("--sysroot", metavar="DIR", help="folder on this machine with the target's file system")


def remote_options(arguments: argparse.Namespace) -> RemoteOptions | None:
    """Return the options of a target behind a GDB stub, None if the command line has no --gdb.

    Raises:
        UsageError: The options contradict one another.
    """
    step = getattr(arguments, "step", None) or 0
    if arguments.gdb is None:
        for name, value in (("--exe", arguments.exe), ("--sysroot", arguments.sysroot), ("--step", step)):
            if value:
                raise UsageError(f"{name} goes with --gdb", "--gdb HOST:PORT")
        return None
    from pyprof.collectors.gdb_stub.remote_serial import parse_address
    from pyprof.options import RemoteOptions

    if getattr(arguments, "subprocesses", False):
        raise UsageError("--subprocesses does not go with --gdb: a stub shows one process")
    parse_address(arguments.gdb)
    return RemoteOptions(arguments.gdb, arguments.exe or "", arguments.sysroot or "", step)


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that select processes and threads. `what` is a verb for the help, such as "record"."""
    parser.add_argument(
        "-p",
        "--pid",
        type=positive_int,
        action="append",
        default=[],
        metavar="PID",
        help=f"the process to {what}; may be repeated",
    )
    parser.add_argument(
        "cmd", nargs=argparse.REMAINDER, metavar="CMD", help=f"the command to start and {what}, in place of a process"
    )
    which = parser.add_argument_group(
        "processes, including those that start later (all options that are given must match)"
    )
    which.add_argument("-a", "--all", action="store_true", help="all processes of this machine")
    which.add_argument(
        "--name",
        type=regex,
        metavar="REGEX",
        help="processes whose name, program or command line matches",
    )
    which.add_argument("--user", metavar="USER", help="processes of this user, by name or number")
    which.add_argument("--cgroup", metavar="PATH", help="processes of this control group and those below it")
    which.add_argument("--thread", type=regex, metavar="REGEX", help="only threads whose name in the kernel matches")


def target_options(arguments: argparse.Namespace) -> TargetOptions | None:
    """Return the selection of processes that the options on the command line describe, None if they describe none.

    Raises:
        UsageError: The options contradict one another.
    """
    criteria = arguments.all or arguments.name or arguments.user or arguments.cgroup
    if not criteria and not arguments.pid:
        return None
    if criteria and arguments.pid:
        raise UsageError(
            "-p names the processes; -a, --name, --user and --cgroup look for them", "give one or the other"
        )
    return TargetOptions(tuple(arguments.pid), arguments.all, arguments.user, arguments.cgroup, arguments.name)


TABLES = ("function", "thread", "process", "module", "line", "native")
"""The kinds of rows of a table in `pyprof top`. In the table "function", the cost of native code counts for the
interpreter's function that calls it.
"""
SORTS = ("self", "total")
SPANS_S = (1.0, 10.0, 60.0, 0.0)
"""Lengths of the time span that a table of `pyprof top` can cover, in seconds; 0 means the whole recording."""
DEFAULT_SPAN_S = 10.0
EVERY_S = 1.0
"""Default time between two snapshots of `pyprof top` in seconds."""
