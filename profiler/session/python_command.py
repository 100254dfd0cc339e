"""Detects commands that are likely to start a Python interpreter, the kind of interpreter that runs pyprof.

A recording of such a command then prepares its inspection of interpreters before the command starts
(session/interpreter_readers.py). Only the name decides: the worker inspects the program when it runs, and a program
that starts another one may be Python, too.
"""

from __future__ import annotations

import os

from pyprof.errors import FormatError
from pyprof.objfile.byte_source import open_regular

_FIRST_LINE = 256
"""Number of bytes of a script's first line ("#!") that the kernel reads."""


def runs_python(program: str) -> bool:
    """Return True if a program's name, or the interpreter in a script's first line, contains "python".

    Args:
        program: Path of the program as the user gave it.
    """
    path = os.path.realpath(program)
    try:
        fd = open_regular(path)
    except (OSError, FormatError):
        return False
    try:
        line = os.read(fd, _FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return False
    finally:
        os.close(fd)
    return b"python" in (line if line.startswith(b"#!") else os.fsencode(os.path.basename(path)))
