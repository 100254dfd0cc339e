"""What a window under way has so far, for the journal of its sink: a recording that is killed loses little.

Each half second the frames, stacks and samples that are new go there, with the names of symbol tables. What is decided
at the end of a window is not in it: source lines and inlined functions, views (all native frames are kept), stacks that
are completed later, processor time without samples. Names that this look-up does not find are not reported: those that
the last one does not find are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.diagnostics import Diagnostics
from pyprof.exporters.base import Journal, JournalPart, SampleColumns
from pyprof.model.interpreter import SampleState
from pyprof.model.profile import Frame, ModuleInfo, ThreadInfo
from pyprof.model.stacks import FrameKey
from pyprof.records import replace
from pyprof.session.assemble import amounts
from pyprof.session.recorder import Begun
from pyprof.session.session import Session
from pyprof.session.worker.messages import Naming
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import Symbolizer

EVERY_S = 0.4
"""A little less than the time between two batches: each is kept as soon as it is there."""
NO_LINES = 0.0
"""Source lines would take seconds, in which nothing is unwound."""


class Keeping:
    """Of one window; close() before its profile is written."""

    def __init__(self, session: Session, naming: Naming, journal: Journal) -> None:
        self._session = session
        self._naming = naming
        self._journal = journal
        self._begun = Begun()
        self._names = NameCache(Diagnostics())
        self._modules: dict[ModuleInfo, int] = {}
        self._threads: dict[int, tuple[int, ThreadInfo]] = {}
        self._due = time.monotonic() + EVERY_S

    def turn(self) -> None:
        """After each batch."""
        if time.monotonic() >= self._due:
            self._send()
            self._due = time.monotonic() + EVERY_S

    def close(self) -> None:
        """Returns when the journal has ended."""
        self._send()
        self._journal.close()

    def _send(self) -> None:
        fresh = self._session.recorder.since(self._begun)
        if fresh.upto == self._begun:
            return
        self._begun = fresh.upto
        known_modules = len(self._modules)
        frames = self._named(fresh.frames)
        new, renamed = self._known(fresh.threads)
        rows, naming = fresh.rows, self._naming
        if naming.view.lock_holder:
            rows = rows.take(np.flatnonzero(rows.state & SampleState.HOLDS_LOCK))
        index = {number: at for number, (at, _) in self._threads.items()}
        thread: npt.NDArray[np.int32] = np.array([index[number] for number in rows.thread.tolist()], np.int32)
        values = amounts(rows, round(1e9 / naming.rate_hz))
        stack = np.maximum(rows.node, 0)  # of one that is still to be completed no frame is known
        self._journal.add(
            JournalPart(
                modules=tuple(self._modules)[known_modules:],
                threads=new,
                renamed=renamed,
                frames=frames,
                parent=fresh.parent,
                frame=fresh.frame,
                samples=SampleColumns(rows.time_ns, thread, stack, values, rows.state, rows.cpu),
            )
        )

    def _named(self, keys: list[FrameKey]) -> tuple[Frame, ...]:
        """Their modules are indices of all that the journal has."""
        if not keys:
            return ()
        session = self._session
        symbolizer = Symbolizer(
            session.images,
            self._names,
            session.recorder.known_spaces,
            NO_LINES,
            session.code,
            session.runtimes.line,
            session.files.starts,
        )
        found = symbolizer.resolve(keys)
        place = [self._modules.setdefault(info, len(self._modules)) for info in found.modules]
        return tuple(
            frame if frame.module < 0 else replace(frame, module=place[frame.module]) for frame in found.frames
        )

    def _known(self, threads: Iterable[tuple[int, ThreadInfo]]) -> tuple[tuple[ThreadInfo, ...], dict[int, ThreadInfo]]:
        """The threads that are new, and those that have another name by now."""
        new: list[ThreadInfo] = []
        renamed: dict[int, ThreadInfo] = {}
        for number, each in threads:
            info = replace(each, labels=self._naming.labels)
            at, before = self._threads.get(number, (len(self._threads), None))
            if before is None:
                new.append(info)
            elif before != info:
                renamed[at] = info
            self._threads[number] = at, info
        return tuple(new), renamed
