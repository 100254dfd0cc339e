"""A worker without a recording: it looks at something foreign once, and answers with values.

What is looked at is an Errand (messages.py): a core file (session/post_mortem.py), an object file, a process
(pyprof.tools). Its class must be loaded before a confined worker starts, so a fork knows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from pyprof.diagnostics import Diagnostics
from pyprof.session.worker.answers import Value
from pyprof.session.worker.file_symbols import AskedSymbols
from pyprof.session.worker.keeper import KnownFiles, KnownFolder, KnownProcess
from pyprof.session.worker.link import WorkerLink
from pyprof.session.worker.messages import Errand, Examine
from pyprof.session.worker.process import Start


class Examiner:
    """Owns the worker, from its start to the end of the `with` statement."""

    def __init__(self, start: Start, confined: bool) -> None:
        """confined: the worker gives up its rights before it looks at anything."""
        self._confined = confined
        self._worker = start(confined)
        self._link = WorkerLink(self._worker)
        self._numbers = itertools.count(1)

    def notify(self, notice: KnownFiles | KnownFolder | KnownProcess) -> None:
        """What may be opened for the worker."""
        self._worker.notify(notice)

    def pieces(self, errand: Errand, kind: type[Value]) -> Iterator[Value]:
        """As they come. Raises what the errand raises, and WorkerDied."""
        return self._link.ask(Examine(next(self._numbers), self._confined, errand)).values(kind)

    def one(self, errand: Errand, kind: type[Value]) -> Value:
        """Of an errand that has one piece."""
        (piece,) = self.pieces(errand, kind)
        return piece

    def symbols(self, diagnostics: Diagnostics) -> AskedSymbols:
        """What files say of interpreters, also before and after errands."""
        return AskedSymbols(self._worker.questions, self._worker.notify, diagnostics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._worker.close(patience_s=0)
