"""Options of recordings: sampling, unwinding, and time (--delay, --every, and a flight recorder's --last and
--trigger).
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyprof.cli.arguments import (
    add_sandbox,
    bytes_size,
    duration,
    label,
    percent,
    positive,
    positive_int,
    source_list,
    unwind_options,
)
from pyprof.collectors import registry as collectors
from pyprof.errors import OutputError, UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.options import (
    AUTO,
    DEFAULT_MAX_DEPTH,
    DEFAULT_MIN_BLOCK_S,
    DEFAULT_RATE_HZ,
    DEFAULT_SOURCES,
    DEFAULT_STACK_SIZE,
    MODES,
    RecordOptions,
    selectable,
)

if TYPE_CHECKING:
    from pyprof.exporters.base import Sink
    from pyprof.session.recording import Recording


def add_sampling(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    what = parser.add_argument_group("sampling")
    what.add_argument("-d", "--duration", type=positive, metavar="S", help="stop after S seconds (default: Ctrl-C)")
    what.add_argument(
        "-r",
        "--rate",
        type=positive,
        default=DEFAULT_RATE_HZ,
        metavar="HZ",
        help="samples a second of each thread (default: %(default)g)",
    )
    _add_modes(what)
    what.add_argument(
        "--collector",
        choices=collectors.list_names(),
        default=AUTO,
        help=f"{collectors.list_summaries()}; {AUTO} (default): chosen for each process by what the kernel allows. "
        "With an interpreter: bpf, else ptrace; without: perf, else ptrace. bpf also for -a, for commands and with "
        "--idle, --wakers, and --mode offcpu, wall or lock",
    )
    what.add_argument(
        "-s",
        "--subprocesses",
        action=argparse.BooleanOptionalAction,
        help="also record child processes, current and future ones, until the last has ended; default: children "
        "of a command are recorded until the command ends, those of a process are not",
    )
    _add_how(what)
    return what


def _add_how(what: argparse._ArgumentGroup) -> None:
    """Add the options for limits, the sandbox and labels to a parser."""
    what.add_argument(
        "--max-overhead",
        type=percent,
        metavar="PERCENT",
        help="maximum share of time for which the target is stopped; the rate is lowered to keep it",
    )
    what.add_argument(
        "--min-block",
        type=duration,
        default=DEFAULT_MIN_BLOCK_S,
        metavar="TIME",
        help="record a separate stack for each wait that is longer than this (--mode offcpu and wall, with bpf); "
        "shorter waits get one, too, while fewer than 300 waits end per second; with s, ms or us (default: 1ms)",
    )
    add_sandbox(what)
    what.add_argument(
        "--stack-size",
        type=bytes_size,
        default=DEFAULT_STACK_SIZE,
        metavar="BYTES",
        help="maximum number of bytes of a stack that each stop copies, with K or M. The outer part of a larger stack "
        "is read only once, and the thread is not stopped for it (default: 1M)",
    )
    what.add_argument(
        "--label",
        type=label,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="label of the recording, for pyprof report --label; may be repeated",
    )


def _add_modes(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "--mode",
        choices=MODES,
        help="cpu (default): threads that run; offcpu: threads that sleep, and in which system call; wall: both; lock: "
        "threads that wait for a lock, grouped by lock and by the thread that held it (with bpf)",
    )
    what.add_argument(
        "--wakers",
        action="store_true",
        help="show the thread that ended each wait, with its stack (--mode offcpu and wall, with bpf)",
    )
    what.add_argument(
        "-i",
        "--idle",
        action="store_true",
        help="record idle threads, too, such as those of a pool or an event loop that waits for work. Without --mode, "
        "it is the same as --mode wall. It adds idle threads to --mode offcpu and lock",
    )
    what.add_argument("-k", "--kernel", action="store_true", help="include kernel frames (needs perf or bpf)")


def add_unwinding(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("unwinding")
    how.add_argument(
        "--unwind",
        type=source_list,
        default=DEFAULT_SOURCES,
        metavar="LIST",
        help="sources of unwind rules, separated by commas, in the order in which they are tried; 'default' means "
        "all sources listed below except scan (default: default)",
    )
    how.add_argument(
        "--scan",
        action="store_true",
        help="if no source knows the caller of a frame, search the stack for a return address from which the root can "
        "be reached: a guess; the same as --unwind default,scan",
    )
    how.add_argument(
        "--symbols",
        action="append",
        default=[],
        metavar="PATH|URL",
        help="Breakpad symbol files: one, or a folder or an HTTP server of NAME/ID/NAME.sym; may be repeated",
    )
    how.add_argument(
        "--max-depth",
        type=positive_int,
        default=DEFAULT_MAX_DEPTH,
        metavar="N",
        help="maximum number of frames of a stack (default: %(default)d)",
    )


def format_unwind_sources() -> str:
    """Return a section of the help with a line for each source that --unwind accepts."""
    lines = (f"  {source.name + ':':<18} {source.words}\n" for source in selectable())
    return f"sources for --unwind:\n{''.join(lines)}"


def record_options(arguments: argparse.Namespace) -> RecordOptions:
    """Return the recording options that the command line states: those of this module, of add_selection() and of
    add_python().

    Raises:
        UsageError: The options contradict one another.
    """
    unwind = unwind_options(arguments)
    return RecordOptions(
        duration=arguments.duration,
        rate=arguments.rate,
        mode=arguments.mode or ("wall" if arguments.idle else "cpu"),
        collector=arguments.collector,
        subprocesses=arguments.subprocesses,
        kernel=arguments.kernel,
        thread=arguments.thread,
        max_overhead=arguments.max_overhead / 100 if arguments.max_overhead else None,
        stack_size=arguments.stack_size,
        unwind=unwind.sources,
        symbols=unwind.symbols,
        max_depth=unwind.max_depth,
        native=arguments.native,
        follow_tasks=arguments.follow_tasks,
        lock_holder=arguments.gil,
        min_block=arguments.min_block,
        labels=dict(arguments.label) or None,
        wakers=arguments.wakers,
        sandbox=arguments.sandbox,
    )


_TIME = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)([KMG]?)", re.IGNORECASE)
_MIN_SIZE = 1 << 20
_MAX_S = 1e6
"""Upper limit of the time span in seconds that a flight recorder keeps. The value itself means that only --max-size
limits what is kept.
"""
_SIZED_WINDOW_S, _SIZED_REST_S = 10.0, 3600.0
"""Length of a stored window and minimum time between two triggers, in seconds, of a flight recorder that is limited
only by size.
"""
_POLL_S = 0.02


def span(text: str) -> float:
    """Parse a duration such as 90s, 10m or 2h, and return it in seconds."""
    found = _TIME.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 1 <= seconds < _MAX_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of at least one second, such as 90s, 10m or 2h")
    return seconds


def disk_size(text: str) -> int:
    """Parse a size such as 100M or 2G, and return it in bytes."""
    found = _SIZE.fullmatch(text)
    size = int(found[1]) << 10 * "KMG".find(found[2].upper() or " ") + 10 if found and found[2] else 0
    size = int(found[1]) if found and not found[2] else size
    if not _MIN_SIZE <= size < 1 << 50:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1M, with K, M or G")
    return size


def add_timing(parser: argparse.ArgumentParser) -> None:
    when = parser.add_argument_group("start and output times")
    when.add_argument("--delay", type=positive, metavar="S", help="begin to record after S seconds")
    when.add_argument(
        "--every", type=positive, metavar="S", help="close the output and begin the next one each S seconds"
    )
    when.add_argument(
        "--last",
        type=span,
        metavar="TIME",
        help="keep only the last part of the recording, such as 90s, 10m or 2h; it is written at the end, on SIGUSR1, "
        "and by --trigger",
    )
    when.add_argument(
        "--trigger",
        action="append",
        default=[],
        metavar="WHEN",
        help="with --last or --max-size: write each time a condition becomes true; 'cpu>90': all recorded processes "
        "together use more than 90 percent of one processor; file:/tmp/x: the file /tmp/x exists; may be repeated",
    )
    when.add_argument(
        "--max-size",
        type=disk_size,
        metavar="BYTES",
        help="keep only the last part of the recording, up to this size, with M or G; with --last, the size limit wins",
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """The options of `pyprof record` that say when it begins and when it writes.

    Attributes:
        delay: Seconds before the recording begins, None if not given.
        every: Seconds between two files, None if not given.
        last_s: Seconds that a flight recorder keeps, None if there is none.
        triggers: Conditions of a flight recorder.
        most_bytes: Maximum size in bytes of what a flight recorder keeps.
    """

    delay: float | None
    every: float | None
    last_s: float | None
    triggers: tuple[str, ...]
    most_bytes: int | None

    @property
    def several(self) -> bool:
        """True if the timing options make a recording write several files."""
        return self.every is not None or self.last_s is not None

    def as_text(self) -> dict[str, str]:
        """Return the timing options that were given as texts, which the recording file stores."""
        given = {"delay": self.delay, "every": self.every, "last": None if self.sized else self.last_s}
        found = {name: f"{seconds:g}" for name, seconds in given.items() if seconds is not None}
        if self.triggers:
            found["trigger"] = ",".join(self.triggers)
        return found | ({"max_size": str(self.most_bytes)} if self.most_bytes else {})

    @property
    def named(self) -> str:
        """Name of the option that makes a recording write several files: --every, --last or --max-size."""
        return "--every" if self.every else "--max-size" if self.sized else "--last"

    @property
    def sized(self) -> bool:
        """True if only the size limits the data that a flight recorder keeps."""
        return self.last_s == _MAX_S


def timing(arguments: argparse.Namespace) -> Timing:
    """Return the parsed options that say when a recording begins and when it writes.

    Raises:
        UsageError: The options contradict one another.
    """
    last_s = arguments.last or (_MAX_S if arguments.max_size else None)
    if last_s is None and arguments.trigger:
        raise UsageError("--trigger is for a flight recorder", "--last 10m")
    if last_s is not None and arguments.every is not None:
        other = "--last" if arguments.last else "--max-size"
        raise UsageError(f"--every keeps all windows, {other} only the last ones: give one of them")
    if arguments.gdb and any(each.startswith("cpu") for each in arguments.trigger):
        raise UsageError("the processor time of a target behind a stub is unknown", "--trigger file:PATH")
    return Timing(arguments.delay, arguments.every, last_s, tuple(arguments.trigger), arguments.max_size)


def wait(delay: float | None, over: Callable[[], bool]) -> None:
    """Wait for the time of --delay before a recording, or until the function over() returns True."""
    until = time.monotonic() + (delay or 0)
    while not over() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_S))


class Flight:
    """The flight recorder of `pyprof record --last`, with its triggers."""

    def __init__(self, how: Timing, recording: Recording, to: Sink, output: str, say: Callable[[str], None]) -> None:
        """Create the flight recorder of `pyprof record --last`.

        Args:
            how: The timing options.
            recording: The recording.
            to: Sink that receives the written profile.
            output: Path of the output; the stored windows are in its folder.
            say: Function that prints a line for the user.

        Raises:
            OutputError: The folder cannot be created.
            UsageError: A trigger is wrong.
        """
        from pyprof.session.flight_recorder import LastWindowsSink, Triggers, condition, window_s

        assert how.last_s is not None
        conditions = [condition(text, recording.pids) for text in how.triggers]
        parent = os.path.dirname(output) if output != "-" else ""
        try:
            folder = tempfile.mkdtemp(prefix="pyprof-last-", dir=parent or os.curdir)
        except OSError as error:
            raise OutputError(
                f"{parent or '.'} cannot be written: {error.strerror}", "name another place: -o"
            ) from None
        self._kept = LastWindowsSink(os.path.abspath(folder), how.last_s, how.most_bytes)
        self._deliveries = recording.deliveries
        self._to = to
        self._say = say
        self._number = 0
        self._triggers = Triggers(conditions, self.write_out, _SIZED_REST_S if how.sized else how.last_s)
        self._deliveries.every(_SIZED_WINDOW_S if how.sized else window_s(how.last_s), self._kept)
        self._deliveries.inherit(self.at_end)

    @property
    def at_end(self) -> Sink:
        from pyprof.session.flight_recorder import FlightRecordingEnd

        return FlightRecordingEnd(self._kept, self._to, self._number)

    def beat(self) -> None:
        """Check the trigger conditions of a flight recorder between two batches. A condition that has begun to hold
        makes the flight recorder write its windows.
        """
        self._triggers.check_conditions()

    def write_out(self, cause: str) -> None:
        """Request that the flight recorder soon writes the windows that it keeps. The recording continues. Any thread
        may call this.

        Args:
            cause: Name of the signal or trigger, for a message to the user.
        """
        from pyprof.session.flight_recorder import WrittenOut

        self._say(f"pyprof: {cause}: writing what is kept")
        self._deliveries.write_out(WrittenOut(self._kept, self._to, self._number))
        self._number += 1
        self._deliveries.inherit(self.at_end)

    def discard(self) -> None:
        """Delete the windows that a flight recorder keeps, because the recording did not begin."""
        self._kept.clear()

    @property
    def left(self) -> str:
        """Folder with windows that the flight recorder could not write at its end, "" if it has written all."""
        return self._kept.folder if os.path.isdir(self._kept.folder) else ""
