"""Options of a target behind a GDB stub."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyprof.errors import UsageError

if TYPE_CHECKING:
    from pyprof.options import RemoteOptions


GDB_HELP = "what runs behind this GDB stub, or unix:PATH"


def add_remote(parser: argparse.ArgumentParser) -> None:
    remote = parser.add_argument_group("a target behind a GDB stub (gdbserver, qemu, OpenOCD, J-Link)")
    remote.add_argument("--gdb", metavar="HOST:PORT", help=GDB_HELP)
    remote.add_argument("--exe", metavar="FILE", help="the program's file, on this machine")
    remote.add_argument("--sysroot", metavar="DIR", help="where the target's other files start, on this machine")


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
