"""Jobs beside the sampling: in a forked child, which has all tables and touches no target.

A thread would share the interpreter lock with the sampling loop and make it late.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from pyprof.errors import PyprofError

T = TypeVar("T")
_CHUNK = 1 << 20


class JobDied(PyprofError):
    """A job's process ended without an answer."""


@dataclass(eq=False)
class Job(Generic[T]):
    """A job under way in a child of this process."""

    _child: int
    _answer: int
    _found: tuple[T | None, BaseException | None] | None = field(default=None)

    @property
    def exited(self) -> bool:
        """Has it ended? One with an answer longer than a pipe holds waits until that is read."""
        try:
            return os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def result(self) -> T:
        """Wait for it. Raises what the job raised, JobDied."""
        if self._found is None:
            self._found = self._collect()
        value, error = self._found
        if error is not None:
            raise error
        return cast("T", value)

    def _collect(self) -> tuple[T | None, BaseException | None]:
        parts = []
        with open(self._answer, "rb", buffering=0) as answer:
            while chunk := answer.read(_CHUNK):
                parts.append(chunk)
        try:
            _, status = os.waitpid(self._child, 0)
        except ChildProcessError:  # somebody in this process waits for all children
            status = 0
        if not parts or status:
            return None, JobDied("a process that named a profile died", "dmesg may say why: memory?")
        found: tuple[T | None, BaseException | None] = pickle.loads(b"".join(parts))
        return found

    def abandon(self) -> None:
        """Nobody wants the result."""
        if self._found is None:
            self._found = None, JobDied("the job was abandoned")
            os.close(self._answer)
            _quietly(os.kill, self._child, 9)
            _quietly(os.waitpid, self._child, 0)


def _quietly(call: Callable[..., Any], *arguments: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        call(*arguments)


def start(job: Callable[[], T]) -> Job[T]:
    """The result, or what the job raises, is pickled."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if child:
        os.close(write)
        return Job(child, read)
    code = 1
    try:
        os.close(read)
        try:
            answer = pickle.dumps((job(), None))
        except BaseException as error:
            if not isinstance(error, PyprofError):
                error.add_note("".join(traceback.format_exception(error)))
            answer = pickle.dumps((None, error))
        with open(write, "wb") as out:
            out.write(answer)
        code = 0
    finally:
        os._exit(code)
