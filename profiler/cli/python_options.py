"""Options for the display of Python frames."""

from __future__ import annotations

import argparse

from pyprof.options import DEFAULT_NATIVE, NATIVE_VIEWS

NATIVE_HELP = f"native frames in stacks that have Python's (default: {DEFAULT_NATIVE}). " + "; ".join(
    name if name == words else f"{name}: {words}" for name, words in NATIVE_VIEWS.items()
)


def add_python(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Python frames")
    group.add_argument("--native", choices=NATIVE_VIEWS, default=DEFAULT_NATIVE, help=NATIVE_HELP)
    group.add_argument(
        "--async",
        dest="follow_tasks",
        action="store_true",
        help="asyncio: above a task's coroutine, those of the tasks that await it (CPython 3.14 and later)",
    )
    group.add_argument("--gil", action="store_true", help="only samples of threads that hold the GIL")
