"""Exceptions that pyprof raises. The message says what happened, and the hint says what to do.

Only the command line catches all of them. A caller that can continue without a source (after a broken unwind table)
catches one class.
"""

from __future__ import annotations

from typing import Any


class PyprofError(Exception):
    """Base class of all exceptions that pyprof raises on purpose.

    Attributes:
        message: One sentence that says what happened.
        hint: What to do, with a command if there is one.
        exit_code: Exit code of the command line.
        reason: Name of its row in model/loss_reason_table.py.
    """

    exit_code = 1
    reason = "failed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle for subclasses with other constructor arguments."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[PyprofError], arguments: tuple[Any, ...], state: dict[str, Any]) -> PyprofError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


class FormatError(PyprofError, ValueError):
    """A file or a table violates its format. The caller continues without this source."""

    reason = "malformed"

    def __init__(self, section: str, offset: int, problem: str) -> None:
        super().__init__(f"{section}+{offset:#x}: {problem}")
        self.section = section
        self.offset = offset
        self.problem = problem


class UsageError(PyprofError, ValueError):
    """An option or argument is invalid."""

    reason = "usage"
    exit_code = 2


class NoSuchProcess(PyprofError, ProcessLookupError):
    """The process does not exist, or has ended."""

    reason = "no_process"


class AccessDenied(PyprofError, PermissionError):
    """The kernel does not allow pyprof to read the process."""

    reason = "access_denied"


class NotTraceable(PyprofError):
    """The process cannot be sampled: it is a zombie, a kernel thread, pyprof itself, or traced by another process."""

    reason = "not_traceable"


class UnsupportedArchitecture(PyprofError):
    """The target runs code that this build of pyprof cannot unwind."""

    reason = "unknown_architecture"


class OutputError(PyprofError, OSError):
    """An output file or stream cannot be written."""

    reason = "not_written"


class RecordingError(PyprofError, ValueError):
    """A file is no recording or profile, or it is broken or too new."""

    reason = "recording_unreadable"


class MissingLibrary(PyprofError, ImportError):
    """A requested feature needs a Python library that is not installed."""

    reason = "missing_library"


class RemoteError(PyprofError):
    """A GDB stub cannot be reached, violates the protocol, or does not support a request."""

    reason = "stub_failed"


class ConnectionLost(RemoteError, ConnectionError):
    """The connection to a GDB stub was lost, or the stub does not answer."""

    reason = "stub_lost"
