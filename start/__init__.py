"""The entry point of the command `pyprof`, which checks the installed package before it imports it.

Another project has the name `pyprof` on the package index; this one is `pyprof-live` there. If both are
installed, their files are in the same folder. Whichever is installed later overwrites files of the earlier
one, and removing either breaks the remaining one. So the entry point is a separate package, which imports
nothing of `pyprof` before the check. The check lists each folder of sys.path once. A package `pyprof` from
elsewhere, for example from PYTHONPATH, is refused, because modules of both would be mixed.
"""

from __future__ import annotations

import _signal  # signal imports enum, which takes several times as long as the rest of the interpreter's start

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C from now on ends this process without a traceback

import sys

if sys.argv[1:2] == ["record"]:
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGUSR1,))  # a flight recorder handles it when it has started

import os
from collections.abc import Sequence

REMEDY = "`pip uninstall pyprof`, then install this one again: pip install --force-reinstall CHECKOUT-OR-WHEEL"
_RECORDS = {".dist-info": "RECORD", ".egg-info": "top_level.txt"}
"""Name of the file that lists a distribution's packages or files, by the suffix of its metadata folder."""
_MAX_RECORD = 1 << 20


def main() -> None:
    other = other_pyprof(sys.path)
    if other:
        print(f"pyprof: {other} is in the way. {REMEDY}", file=sys.stderr)
    try:
        import pyprof

        place = os.path.dirname(os.path.realpath(pyprof.__file__)) if pyprof.__file__ else ""
        if place and place not in _ours():
            if not other:
                print(f"pyprof: another package `pyprof`, {place}, is in the way: on PYTHONPATH?", file=sys.stderr)
            sys.exit(1)
        from pyprof.__main__ import main as run
    except ImportError as error:
        if not (error.name or "").startswith("pyprof"):
            raise
        if not other:
            print(f"pyprof: {error}: the package is not whole, or another's is in the way. {REMEDY}", file=sys.stderr)
        sys.exit(1)
    run()


def _ours() -> tuple[str, str]:
    """Return the two possible folders of this project's package `pyprof`: of an installed one, and in a checkout."""
    beside = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return os.path.join(beside, "pyprof"), os.path.join(beside, "profiler")


def other_pyprof(path: Sequence[str]) -> str | None:
    """Return a description of another project whose files are in a package `pyprof` in a folder of `path`,
    for an error message. Return None if there is none.
    """
    for folder in path:
        try:
            names = [name for name in os.listdir(folder or ".") if name.startswith("pyprof-")]
        except OSError:
            continue
        for name in names:
            stem, ending = os.path.splitext(name)
            if ending in _RECORDS and _is_in_package(os.path.join(folder, name, _RECORDS[ending])):
                return f"another project, {stem.replace('-', ' ', 1)} in {folder},"
    return None


def _is_in_package(record: str) -> bool:
    try:
        with open(record, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_RECORD).splitlines()
    except OSError:
        return False
    return any(line == "pyprof" or line.startswith("pyprof/") for line in lines)
