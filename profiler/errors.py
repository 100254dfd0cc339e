"""Named conditions. Each says what happened, and its hint what to type next.

Only the command line catches them all; a caller that can go on (a broken table costs one source) catches the
one class that it understands.
"""

from __future__ import annotations

from typing import Any


class PyprofError(Exception):
    """Base of all conditions that pyprof names.

    message: one sentence, what happened. hint: what to do next, with the command where there is one.
    exit_code: what the command line returns. reason: name of its row in model/reason_table.py.
    """

    exit_code = 1
    reason = "failed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: as it is, whatever its class is made from."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[PyprofError], arguments: tuple[Any, ...], state: dict[str, Any]) -> PyprofError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


class FormatError(PyprofError, ValueError):
    """A file or a table breaks its own format. Costs that source, nothing else."""

    reason = "malformed"

    def __init__(self, section: str, offset: int, problem: str) -> None:
        super().__init__(f"{section}+{offset:#x}: {problem}")
        self.section = section
        self.offset = offset
        self.problem = problem


class UsageError(PyprofError, ValueError):
    """Options that cannot be met."""

    reason = "usage"
    exit_code = 2


class NoSuchProcess(PyprofError, ProcessLookupError):
    """The process does not exist, or no longer."""

    reason = "no_process"


class AccessDenied(PyprofError, PermissionError):
    """The kernel does not let us look into the process."""

    reason = "access_denied"


class NotTraceable(PyprofError):
    """The process exists and is ours, but cannot be sampled (zombie, kernel thread, ourselves, traced)."""

    reason = "not_traceable"


class UnsupportedArchitecture(PyprofError):
    """The target runs code that this build of pyprof cannot unwind."""

    reason = "unknown_architecture"


class OutputError(PyprofError, OSError):
    """The output cannot be written."""

    reason = "not_written"


class RecordingError(PyprofError, ValueError):
    """A recording, or another profiler's file, cannot be read: it is none, it is broken, or it is too new."""

    reason = "recording_unreadable"


class MissingLibrary(PyprofError, ImportError):
    """What is asked for needs a library that is not installed."""

    reason = "missing_library"


class RemoteError(PyprofError):
    """A remote stub cannot be reached, breaks the protocol, or cannot do what is asked."""

    reason = "stub_failed"


class ConnectionLost(RemoteError, ConnectionError):
    """The connection to a remote stub is gone, or the stub fell silent."""

    reason = "stub_lost"
