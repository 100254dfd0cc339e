"""Lines of the log of an agent or a server: text for people, or one JSON object a line."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from pyprof.cli import terminal_output
from pyprof.errors import PyprofError

_DELETE = "\x7f"


class Log:
    """The agent's log; write receives a line without its end."""

    def __init__(self, write: Callable[[str], None], as_json: bool) -> None:
        self._write, self._as_json = write, as_json
        self._lock = threading.Lock()

    def __call__(self, level: str, event: str, **fields: object) -> None:
        with self._lock:
            self._write(self._json(level, event, fields) if self._as_json else self._text(level, event, fields))

    def _json(self, level: str, event: str, fields: dict[str, object]) -> str:
        from pyprof.exporters.encoding import dump_json

        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = dump_json({"time": when, "level": level, "event": event, **fields}).decode()
        # the writer would escape such characters as Python does, which is not JSON
        return line.replace(_DELETE, r"\u007f")

    def _text(self, level: str, event: str, fields: dict[str, object]) -> str:
        words = [f"{name.replace('_', ' ')} {_word(value)}" for name, value in fields.items()]
        sign = "" if level == "info" else f"{level}: "
        return f"{sign}{event}{': ' if words else ''}{', '.join(words)}"


def log_thread_failures(log: Log) -> None:
    """Write a line to the log, in place of Python's traceback, if an unexpected error ends a thread of this process."""

    def write(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else ""
        place = traceback.extract_tb(failed.exc_traceback)[-1:]
        where = "".join(f"{frame.filename}:{frame.lineno}" for frame in place)
        log("error", "thread failed", thread=name, error=f"{failed.exc_type.__name__}: {failed.exc_value}", where=where)

    threading.excepthook = write


def log_failure(error: PyprofError) -> None:
    """Write why a command with `--log json` failed as a line of its log."""
    from pyprof.model.reason_lookup import find_hint

    Log(lambda text: terminal_output.line(text, sys.stderr), True)(
        "error", "failed", error=error.message, hint=find_hint(error)
    )


def _word(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {count}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
