"""The parser of the command line, and the one place that catches every named error.

A command's module is imported only when the command is used, or when all commands are listed. It imports what it needs
inside run().
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from pyprof import __version__
from pyprof.cli.terminal_output import HelpFormatter, Parser, complain, refuse, tolerate_encodings
from pyprof.errors import PyprofError

DESCRIPTION = """\
A sampling profiler for live Linux processes. It attaches to an unprepared process and unwinds
its native stacks by all available unwind tables.
"""

EPILOG = """\
examples:
  pyprof record -p 1234                 flame graph of process 1234, until Ctrl-C
  pyprof record -d 10 -o a.pyprof -- ./server --port 80
  pyprof top -p 1234                    what it does now, live in the terminal
  pyprof report a.pyprof                print a saved recording, in any format
  pyprof diff a.pyprof b.pyprof         which functions changed from one to the other
  pyprof dump -p 1234                   what every thread is doing right now
  pyprof doctor 1234                    what will work, before a recording

`pyprof COMMAND --help` is the manual page of a command.
"""

COMMANDS = {
    "record": "pyprof.cli.record",
    "top": "pyprof.cli.top",
    "report": "pyprof.cli.report",
    "diff": "pyprof.cli.diff",
    "merge": "pyprof.cli.merge",
    "dump": "pyprof.cli.dump_stacks",
    "agent": "pyprof.fleet.cli.agent",
    "query": "pyprof.fleet.cli.query",
    "server": "pyprof.fleet.cli.server",
    "demo-fleet": "pyprof.fleet.cli.demo_fleet",
    "doctor": "pyprof.cli.doctor",
    "inspect": "pyprof.cli.inspect_unwind_tables",
    "symbols": "pyprof.cli.symbols",
    "completion": "pyprof.cli.completion",
}
"""Subcommands of pyprof and their modules, which have a function add(). The modules are loaded by name: no module of
the profiler imports pyprof.fleet.
"""


def build_parser(commands: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    parser = Parser(prog="pyprof", description=DESCRIPTION, epilog=EPILOG, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=f"pyprof {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="pyprof")
    for name in commands:
        import_module(COMMANDS[name]).add(parsers)
    return parser


def _only_pid(arguments: argparse.Namespace) -> int | None:
    """Return the pid that the command line names, None if it names none or more than one."""
    given = getattr(arguments, "pid", None)
    pids = given if isinstance(given, list) else [given]
    return pids[0] if len(pids) == 1 and isinstance(pids[0], int) else None


def run(argv: Sequence[str]) -> int:
    """Run one invocation of pyprof and return its exit code: 0 for success, 1 for an error, 2 for wrong usage.

    `dump` and `diff` also return 3, and `record -- CMD` returns the exit code of CMD.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    tolerate_encodings()
    arguments = build_parser([name for name in argv[:1] if name in COMMANDS] or COMMANDS).parse_args(argv)
    arguments.environment = dict(os.environ)  # for the command that `record` starts
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # our signals would wake numpy's idle threads
    if arguments.command == "record" and not arguments.cmd:  # a program that pyprof starts needs the terminal
        from pyprof.cli import front_process

        front_process.begin_session_if_slowed()
    try:
        from pyprof.cli.accelerated_start import leave_out

        leave_out()
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except PyprofError as error:
        if getattr(arguments, "log", "text") == "json":
            from pyprof.cli.terminal_output import log_failure

            log_failure(error)
        else:
            refuse(error, _only_pid(arguments))
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO):
            raise
        complain(f"{error.strerror}{': ' + str(error.filename) if error.filename else ''}")
        return 1
