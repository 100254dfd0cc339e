"""Output of lines for people, and lines of the log of an agent or a server.

Names come from the target, so characters that move the cursor or forge a line are escaped.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from pyprof.cli import terminal_output
from pyprof.errors import PyprofError
from pyprof.model.untrusted_text import CONTROLS, DIRECTIONS

_CONTROL = re.compile(f"[{CONTROLS}{DIRECTIONS}\ud800-\udfff]")
_PROCESS = re.compile(r"\bprocess (\d+)\b")
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN = "unrecognized arguments: "
_NO_TARGET = "one of the arguments -p/--pid"
_COLUMNS = 80
_AS_ROOT = re.compile(r"(?:, or: )?sudo pyprof …(?:, or(?: once)?: |, in a container: |, where .*)?|\bsudo ")


def printable(text: str) -> str:
    """Return a text with control characters, changes of writing direction and bytes that are not UTF-8 escaped as
    Python does.
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def line(text: str, out: TextIO | None = None) -> None:
    """Print one line of text with control characters escaped, by default on standard output."""
    try:
        print(printable(text), file=out or sys.stdout)
    except OSError:
        if (out or sys.stdout) is sys.stdout:
            raise
        # Standard error is a closed terminal, so no one reads it, and the command still has something to write.


def json(document: object, option: int = 0) -> None:
    """Write a JSON document and a line feed to standard output. It is UTF-8 whatever the terminal's encoding. `option`
    is orjson's option flags.
    """
    import orjson

    from pyprof.model.untrusted_text import dump_json

    sys.stdout.flush()
    sys.stdout.buffer.write(dump_json(document, option | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def one_terminal() -> bool:
    """Return True if standard output and standard error are the same terminal."""
    return os.isatty(1) and os.isatty(2) and os.fstat(1).st_rdev == os.fstat(2).st_rdev


def advice(text: str) -> str:
    """Return a hint for the user. If the user is root, the hint's command has no sudo."""
    return _AS_ROOT.sub("", text) if os.geteuid() == 0 else text


def complain(message: str, hint: str = "") -> None:
    """Print a sentence about a problem, and a hint, on standard error."""
    line(f"pyprof: {message}", sys.stderr)
    if hint := advice(hint):
        line(f"  hint: {hint}", sys.stderr)


def columns() -> int:
    """Return the width of the terminal in columns, like shutil.get_terminal_size(), but without importing shutil's
    archive modules.
    """
    with suppress(ValueError):
        if (said := int(os.environ.get("COLUMNS", ""))) > 0:
            return said
    with suppress(AttributeError, ValueError, OSError):
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _COLUMNS  # type: ignore[union-attr]
    return _COLUMNS


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The help formatter of all argument parsers, as wide as the terminal. argparse creates a formatter for each option
    of a parser.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns() - 2)


class Parser(argparse.ArgumentParser):
    """An argument parser that corrects mistakes in its error message: it suggests the word that a mistyped one
    resembles, and -p for a bare number.
    """

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments. Unknown options are reported by the parser of the subcommand, because only that parser knows
        the subcommand's options.
        """
        self._given = args or ()
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            self.error(_UNKNOWN + " ".join(unknown))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        super().error(message + self._suggestion(message))

    def _suggestion(self, message: str) -> str:
        if message.startswith(_NO_TARGET):
            pid = next((each for each in self._given if each.isdecimal()), "")
            return f", did you mean -p {pid}?" if pid else ""
        if found := _CHOICE.search(message):
            given, known = found[1], [choice.strip("' ") for choice in found[2].split(",")]
        elif message.startswith(_UNKNOWN):
            given = message.removeprefix(_UNKNOWN).split()[0].partition("=")[0]
            known = [name for name in self._option_string_actions if name.startswith("--")]
            if not given.startswith("--"):
                return ""
        else:
            return ""
        from difflib import get_close_matches  # most command lines have no mistake

        similar = get_close_matches(given, known, 1)
        return f", did you mean {similar[0]}?" if similar else ""


def refuse(error: PyprofError, pid: int | None = None) -> None:
    """Print an error and a hint: what pyprof cannot do and what helps. In the hint, PID is replaced by the process's
    number.

    Args:
        error: The error. If it has no hint, the hint of its row in the table of reasons is printed.
        pid: Pid of the target. A pid that the message names takes precedence.
    """
    from pyprof.model.loss_reason_texts import find_hint

    named = _PROCESS.search(error.message)
    number = named[1] if named else str(pid) if pid else "PID"
    complain(error.message, find_hint(error).replace("doctor PID", f"doctor {number}"))


def failure(error: BaseException, pid: int | None = None) -> None:
    """Print why a recording ended early. An error that is not pyprof's own is printed with its traceback."""
    if isinstance(error, PyprofError):
        refuse(error, pid)
        return
    import traceback

    traceback.print_exception(error)
    complain("an internal error of pyprof ended the recording early; what was recorded is kept", "please report it")


def tolerate_encodings() -> None:
    """Make standard output and standard error escape characters that the terminal's encoding cannot represent."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_DELETE = "\x7f"


class Log:
    """The log of an agent or a server. The function `write` receives each line without its end."""

    def __init__(self, write: Callable[[str], None], as_json: bool) -> None:
        self._write, self._as_json = write, as_json
        self._lock = threading.Lock()

    def __call__(self, level: str, event: str, **fields: object) -> None:
        with self._lock:
            self._write(self._json(level, event, fields) if self._as_json else self._text(level, event, fields))

    def _json(self, level: str, event: str, fields: dict[str, object]) -> str:
        from pyprof.model.untrusted_text import dump_json

        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = dump_json({"time": when, "level": level, "event": event, **fields}).decode()
        # the writer would escape such characters as Python does, which is not JSON
        return line.replace(_DELETE, r"\u007f")

    def _text(self, level: str, event: str, fields: dict[str, object]) -> str:
        words = [f"{name.replace('_', ' ')} {_word(value)}" for name, value in fields.items()]
        sign = "" if level == "info" else f"{level}: "
        return f"{sign}{event}{': ' if words else ''}{', '.join(words)}"


def log_thread_failures(log: Log) -> None:
    """Write unexpected errors that end a thread of this process to the log, in place of Python's traceback."""

    def write(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else ""
        place = traceback.extract_tb(failed.exc_traceback)[-1:]
        where = "".join(f"{frame.filename}:{frame.lineno}" for frame in place)
        log("error", "thread failed", thread=name, error=f"{failed.exc_type.__name__}: {failed.exc_value}", where=where)

    threading.excepthook = write


def log_failure(error: PyprofError) -> None:
    """Write the reason why a command with `--log json` failed, in the form of a line of its log."""
    from pyprof.model.loss_reason_texts import find_hint

    Log(lambda text: terminal_output.line(text, sys.stderr), True)(
        "error", "failed", error=error.message, hint=find_hint(error)
    )


def _word(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {count}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
