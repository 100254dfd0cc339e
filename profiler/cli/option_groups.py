"""Groups of options that several commands share: samples, processes, Python frames, a target behind a GDB stub."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyprof.cli.argument_types import label, positive_int, regex
from pyprof.errors import UsageError
from pyprof.options import DEFAULT_NATIVE, NATIVE_VIEWS, TargetOptions

if TYPE_CHECKING:
    from pyprof.model.profile import Profile
    from pyprof.options import RemoteOptions

CRITERIA = ("thread", "process", "pid", "tid", "function", "exclude", "module", "label")
"""Names of options that choose samples, and of the criteria of Profile.filter() that they set."""


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
    """Return the profile with only the samples that the options choose."""
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
    """Return the options of a target behind a GDB stub, None without --gdb.

    Raises:
        UsageError: The options contradict one another.
    """
    step = getattr(arguments, "step", None) or 0
    if arguments.gdb is None:
        for name, value in (("--exe", arguments.exe), ("--sysroot", arguments.sysroot), ("--step", step)):
            if value:
                raise UsageError(f"{name} goes with --gdb", "--gdb HOST:PORT")
        return None
    from pyprof.collectors.gdb.remote_serial import parse_address
    from pyprof.options import RemoteOptions

    if getattr(arguments, "subprocesses", False):
        raise UsageError("--subprocesses does not go with --gdb: a stub shows one process")
    parse_address(arguments.gdb)
    return RemoteOptions(arguments.gdb, arguments.exe or "", arguments.sysroot or "", step)


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
