"""Does a command look like one that begins an interpreter of the kind that runs us?

Then a recording rehearses its first look at one (session/runtimes.py). A name decides: what the program holds
the worker finds out when it runs, and a program that starts another one may be a Python, too.
"""

from __future__ import annotations

import os

from pyprof.errors import FormatError
from pyprof.objfile.source import open_regular

_FIRST_LINE = 256
"""Bytes of it that the kernel reads."""


def runs_python(program: str) -> bool:
    """program: of the command, as the user named it. A script counts by its first line."""
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
