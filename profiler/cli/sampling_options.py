"""Options of sampling and unwinding."""

from __future__ import annotations

import argparse

from pyprof.cli.argument_types import (
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
from pyprof.frame_sources import selectable
from pyprof.options import (
    AUTO,
    DEFAULT_MAX_DEPTH,
    DEFAULT_MIN_BLOCK_S,
    DEFAULT_RATE_HZ,
    DEFAULT_SOURCES,
    DEFAULT_STACK_SIZE,
    MODES,
    RecordOptions,
)


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
        help=f"{collectors.list_summaries()}; {AUTO} (default): chosen for each process, bpf or "
        "ptrace if an interpreter runs in it, perf if not, ptrace if the kernel allows neither bpf nor perf",
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
    """Add the options for limits, the sandbox, and labels to a parser."""
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
        "shorter waits get one, too, while few waits end a second; with s, ms or us (default: 1ms)",
    )
    add_sandbox(what)
    what.add_argument(
        "--stack-size",
        type=bytes_size,
        default=DEFAULT_STACK_SIZE,
        metavar="BYTES",
        help="maximum number of bytes of a stack that each stop copies, with K or M; of a larger stack, the outer "
        "part is read only once, while the thread runs (default: 1M)",
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
        help="without --mode: the same as --mode wall; with --mode offcpu or lock: also idle threads, such as those of "
        "a pool or an event loop that waits for work",
    )
    what.add_argument("-k", "--kernel", action="store_true", help="include kernel frames (needs perf or bpf)")


def add_unwinding(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("unwinding")
    how.add_argument(
        "--unwind",
        type=source_list,
        default=DEFAULT_SOURCES,
        metavar="LIST",
        help="sources of unwind rules, separated by commas, in the order in which they are tried; default stands for "
        "all sources below but scan (default: default)",
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
    """Return the recording options from the arguments of this module, of add_selection() and of add_python().

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
