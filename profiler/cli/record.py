"""`pyprof record`: sample a process or a command, and write what it did."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from pyprof.cli.arguments import (
    add_python,
    add_remote,
    add_selection,
    chosen_format,
    positive_int,
    remote_options,
    target_options,
)
from pyprof.cli.recording_options import (
    Timing,
    add_sampling,
    add_timing,
    add_unwinding,
    format_unwind_sources,
    record_options,
    timing,
)
from pyprof.cli.terminal_output import HelpFormatter
from pyprof.errors import UsageError
from pyprof.exporters import registry

if TYPE_CHECKING:
    from pyprof.options import RemoteOptions, TargetOptions

_WAYS = "-p PID, -a, --name REGEX (--user, --cgroup), --gdb HOST:PORT, or a command"

DESCRIPTION = """\
Attach to a running process (-p PID) or start a command, sample its stacks, and write a
profile. The kernel takes the samples where that is allowed, else running threads are
stopped for microseconds a sample; the target is left running whatever happens to pyprof.
Ctrl-C, SIGTERM, -d or the target's end finish the recording; what was recorded until
then is written. A line on standard error says when sampling begins; -d counts from then on.
"""

EPILOG = """\
SOURCES
output formats (chosen by -f, or else by the suffix of -o):
FORMATS
  In a file name %p is the pid, %n the process name, %t the time, %i the number of the
  file (with --every and --last), %% a percent sign.

exit status:
  0 done, 1 error (what was recorded is kept) or no samples, 2 wrong usage, 128 + the
  signal's number if a signal ended pyprof before the first sample. With a command, its
  status if that is not 0; else as above, but 0 if there are no samples.

examples:
  pyprof record -p 1234
  pyprof record -p 1234 -d 30 -r 199 -o checkout.speedscope.json
  pyprof record -d 10 -o - -f collapsed -p 1234 | awk '{print $NF, $0}' | sort -n
  pyprof record -s --every 60 -o 'web-%t.pb.gz' -p 1234
  pyprof record -o build.html --save build.pyprof -- make -j4
  pyprof record -p 1234 --last 10m --trigger 'cpu>90' -o 'slow-%t.pyprof'
  pyprof record -p 1234 -p 1240 -d 10
  pyprof record --name 'postgres|pgbouncer' -d 30
  sudo pyprof record -a -d 10 -o machine.html
  pyprof record -p 1234 --mode offcpu -d 10
  pyprof record --gdb board:2345 --sysroot /usr/arm-linux-gnueabihf -d 10
"""


def formats() -> str:
    """Return a line with the suffixes for each output format, for the help of `pyprof record`."""
    rows = [(entry.name, " ".join(entry.suffixes), entry.summary) for entry in registry.FORMATS]
    return "\n".join(f"    {name:<11} {suffixes:<26} {summary}" for name, suffixes, summary in rows)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "record",
        help="sample a process or a command and write a profile",
        description=DESCRIPTION,
        epilog=EPILOG.replace("FORMATS", formats()).replace("SOURCES", format_unwind_sources()),
        formatter_class=HelpFormatter,
        usage="pyprof record [options] (-p PID ... | -a | --name REGEX | --gdb HOST:PORT | [--] CMD ...)",
    )
    add_selection(parser, "record")

    add_remote(parser)
    what = add_sampling(parser)
    what.add_argument(
        "--step",
        type=positive_int,
        metavar="N",
        help="with --gdb: one sample each N instructions, by single-stepping, for stubs that cannot stop a running "
        "target",
    )
    add_unwinding(parser)
    add_python(parser)
    add_timing(parser)
    out = parser.add_argument_group("output")
    out.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write, - for standard output with text formats (default: pyprof-NAME-PID-TIME.html)",
    )
    out.add_argument("--save", metavar="FILE", help="also write the recording to FILE (NAME.pyprof), for pyprof report")
    out.add_argument(
        "-f", "--format", metavar="FORMAT", help=f"{', '.join(registry.format_names())} (default: by the suffix)"
    )
    out.add_argument("-t", "--threads", action="store_true", help="add the thread as root frame")
    out.add_argument("--processes", action="store_true", help="add the process as root frame, if there are several")
    out.add_argument("--full-paths", action="store_true", help="show modules by path instead of by name")
    out.add_argument("--summary", metavar="FILE", help="write statistics of the recording as JSON")
    out.add_argument("-v", "--verbose", action="store_true", help="print all counters, and what each module lacks")
    out.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary on standard error")
    parser.set_defaults(run=run)


def _check_one(command: list[str], targets: TargetOptions | None, remote: RemoteOptions | None) -> None:
    """Raise UsageError unless the command line names exactly one target: a command, processes, or a GDB stub."""
    if len(command) == 1 and command[0].isdigit() and not targets and not remote:
        raise UsageError(f"{command[0]} is not a command", f"a process is given with -p {command[0]}")
    ways = sum(map(bool, (command, targets, remote)))
    if ways > 1:
        raise UsageError(f"give either {_WAYS}", "pyprof record -p PID, or pyprof record -- CMD ...")
    if not ways:
        raise UsageError(
            f"give exactly one way to choose what is recorded: {_WAYS}",
            "pyprof record -p PID, or pyprof record -- CMD ...",
        )


def _check_names(template: str, arguments: argparse.Namespace, when: Timing) -> None:
    """Check the names of the output files.

    Raises:
        UsageError: One file would overwrite another.
        OutputError: A file cannot be written.
    """
    from pyprof.cli.output_files import Names, check_writable

    for path in filter(None, (template, arguments.save)):
        if when.several and path != "-" and not any(mark in path for mark in ("%i", "%t")):
            raise UsageError(
                f"{when.named} writes several files, which need different names",
                "-o 'name-%i.html'",
            )
    if arguments.save in (template, "-"):
        raise UsageError("--save needs a file of its own", "--save NAME.pyprof")
    for path in filter(None, (template, arguments.save, arguments.summary)):
        check_writable(Names(0, "x", time.time(), 0).expand(path))


def run(arguments: argparse.Namespace) -> int:
    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    remote = remote_options(arguments)
    targets = target_options(arguments)
    _check_one(command, targets, remote)
    from pyprof.cli.record_run import Invocation
    from pyprof.cli.window_writer import WindowOptions
    from pyprof.exporters.base import ExportOptions

    named = arguments.format or arguments.output
    exporter = chosen_format(arguments.format, arguments.output or "") if named else registry.DEFAULT
    when = timing(arguments)
    template = arguments.output or f"pyprof-%n-%p-%t{'-%i' if when.several else ''}{exporter.suffixes[0]}"
    if arguments.idle and arguments.mode == "cpu":
        raise UsageError("-i includes sleeping threads, --mode cpu excludes them", "give one of them")
    _check_names(template, arguments, when)
    how = WindowOptions(
        exporter=exporter,
        output=template,
        save=arguments.save,
        summary=arguments.summary,
        export=ExportOptions(arguments.threads, arguments.processes, arguments.full_paths),
        target="command" if command else "stub" if remote else "pid" if targets and targets.pids else "",
        verbose=arguments.verbose,
        quiet=arguments.quiet,
        idle=arguments.idle,
    )
    return Invocation(when, record_options(arguments), how).run(command, targets, remote, arguments.environment)
