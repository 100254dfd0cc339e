"""Options that choose processes and threads."""

from __future__ import annotations

import argparse

from pyprof.cli.argument_types import positive_int, regex
from pyprof.errors import UsageError
from pyprof.options import TargetOptions


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that choose processes and threads; what is a verb for the help: "record"."""
    parser.add_argument(
        "-p",
        "--pid",
        type=positive_int,
        action="append",
        default=[],
        metavar="PID",
        help=f"the process to {what}; may be repeated",
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="CMD", help=f"or the command to start and {what}")
    which = parser.add_argument_group("which processes (those that come later included; each one given must fit)")
    which.add_argument("-a", "--all", action="store_true", help="every process of this machine")
    which.add_argument(
        "--name",
        type=regex,
        metavar="REGEX",
        help="part of the name of the process or its program, or of its command line",
    )
    which.add_argument("--user", metavar="USER", help="processes of this user, by name or number")
    which.add_argument("--cgroup", metavar="PATH", help="processes of this control group and those below it")
    which.add_argument(
        "--thread", type=regex, metavar="REGEX", help="only threads with this in their name (the kernel's)"
    )


def target_options(arguments: argparse.Namespace) -> TargetOptions | None:
    """Return the processes that the options choose, None if there are none.

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
