"""Lines for people. Names come from the target: what would move the cursor or forge a line is shown, not obeyed."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from contextlib import suppress
from typing import TextIO

from pyprof.errors import PyprofError
from pyprof.model.text import CONTROLS, DIRECTIONS

_CONTROL = re.compile(f"[{CONTROLS}{DIRECTIONS}\ud800-\udfff]")
_COLUMNS = 80
_AS_ROOT = re.compile(r"(?:, or: )?sudo pyprof …(?:, or(?: once)?: |, in a container: |, where .*)?|\bsudo ")


def printable(text: str) -> str:
    """text with control characters, changes of writing direction and bytes that are no UTF-8 escaped as in Python."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def line(text: str, out: TextIO | None = None) -> None:
    """Print one line; out: standard output unless said."""
    try:
        print(printable(text), file=out or sys.stdout)
    except OSError:
        if (out or sys.stdout) is sys.stdout:
            raise
        # standard error is a terminal that was closed: nobody is there to tell, and there is still something to write


def json(document: object, option: int = 0) -> None:
    """One JSON document and a line feed on standard output, in UTF-8 whatever the terminal speaks. option: orjson's."""
    import orjson

    from pyprof.exporters.utf8 import dumps

    sys.stdout.flush()
    sys.stdout.buffer.write(dumps(document, option | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def one_terminal() -> bool:
    """Do standard output and standard error go to the same terminal?"""
    return os.isatty(1) and os.isatty(2) and os.fstat(1).st_rdev == os.fstat(2).st_rdev


def advice(text: str) -> str:
    """A command to type, for the user who reads it: root needs no sudo."""
    return _AS_ROOT.sub("", text) if os.geteuid() == 0 else text


def complain(message: str, hint: str = "") -> None:
    """One sentence, and what to do, on standard error."""
    line(f"pyprof: {message}", sys.stderr)
    if hint := advice(hint):
        line(f"  hint: {hint}", sys.stderr)


def columns() -> int:
    """As shutil.get_terminal_size() has it, which imports what unpacks archives."""
    with suppress(ValueError):
        if (said := int(os.environ.get("COLUMNS", ""))) > 0:
            return said
    with suppress(AttributeError, ValueError, OSError):
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _COLUMNS  # type: ignore[union-attr]
    return _COLUMNS


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """One is made for each option that a parser gets."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns() - 2)


def refuse(error: PyprofError) -> None:
    """What pyprof cannot do, and what helps: as the error says it, else as the table of reasons does."""
    from pyprof.model.reasons import remedy

    complain(error.message, remedy(error))


def failure(error: BaseException) -> None:
    """What ended a recording early; what we did not foresee with its traceback, so that it can be mended."""
    if isinstance(error, PyprofError):
        refuse(error)
        return
    import traceback

    traceback.print_exception(error)
    complain("an error of pyprof's own ended the recording early; what was recorded is kept", "please report it")


def tolerate_encodings() -> None:
    """A terminal that cannot show a letter gets its escape, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
