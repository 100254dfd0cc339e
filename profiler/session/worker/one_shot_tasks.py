"""One-shot tasks of a worker that has no recording: it examines one untrusted thing and returns values.

A task is a OneShotTask (messages.py). It examines a core file (session/post_mortem.py), an object file or a process
(pyprof.tools). The module of its class must be loaded before a confined worker is forked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from pyprof.diagnostics import Diagnostics
from pyprof.session.worker.file_broker import AnyObjectFile, KnownFiles, KnownFolder, KnownProcess
from pyprof.session.worker.interpreter_symbols import InterpreterSymbolClient
from pyprof.session.worker.messages import Examine, OneShotTask
from pyprof.session.worker.response_codec import Value
from pyprof.session.worker.worker_client import WorkerLink
from pyprof.session.worker.worker_process import Start


class Examiner:
    """Owner of a worker that runs one-shot tasks, from its start to the end of the `with` statement."""

    def __init__(self, start: Start, confined: bool) -> None:
        """Start a worker for one-shot tasks.

        Args:
            start: Starts a worker.
            confined: True if the worker gives up its rights before it runs a task.
        """
        self._confined = confined
        self._worker = start(confined)
        self._link = WorkerLink(self._worker)
        self._numbers = itertools.count(1)

    def notify(self, notice: AnyObjectFile | KnownFiles | KnownFolder | KnownProcess) -> None:
        """Tell the file broker which files it may open for the worker."""
        self._worker.notify(notice)

    def pieces(self, errand: OneShotTask, kind: type[Value]) -> Iterator[Value]:
        """Run a one-shot task in the worker and yield its results as they arrive.

        Raises:
            WorkerDied: The worker has ended.
            Exception: What the task raises.
        """
        return self._link.ask(Examine(next(self._numbers), self._confined, errand)).values(kind)

    def one(self, errand: OneShotTask, kind: type[Value]) -> Value:
        """Run a one-shot task in the worker that has exactly one result, and return that."""
        (piece,) = self.pieces(errand, kind)
        return piece

    def symbols(self, diagnostics: Diagnostics) -> InterpreterSymbolClient:
        """Return a reader of interpreter symbols in files, which the worker reads. It works before and after tasks."""
        return InterpreterSymbolClient(self._worker.questions, self._worker.notify, diagnostics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._worker.close(patience_s=0)
