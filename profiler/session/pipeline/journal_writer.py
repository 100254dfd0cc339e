"""Writes the current window to the journal of its sink, so that a recording that is killed loses little.

Every half second the journal gets the new frames, stacks and samples, with the current counters and the names that are
known without reading a file. Then symbol tables that were not read before are read. Source lines and inlined functions
follow when the background symbolizer (background_symbolizer.py) has read them. It reads none for frames that the
window's view hides, so those stay without. The journal lacks what is decided at the end of a window: views (all native
frames are kept), stacks that are completed later, and processor time without samples. Names that are missing here are
not reported, because the symbolization at the end of the window reports them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.exporters.base import Journal, JournalPart, SampleColumns
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.profile import Frame, ModuleInfo, ThreadInfo
from pyprof.model.stacks import FrameKey
from pyprof.model.summary import ModuleSummary, Summary
from pyprof.model.thread_identity import join_labels
from pyprof.problem_counters import Diagnostics
from pyprof.session.own_cpu_and_memory import RecentCost
from pyprof.session.pipeline.profile_assembly import amounts, effort
from pyprof.session.pipeline.sample_windows import WindowAdditions, WindowPosition
from pyprof.session.pipeline.window_row_store import Rows, RowStore
from pyprof.session.session import Session
from pyprof.session.worker.messages import NamingOptions
from pyprof.symbolize.symbolizer import Resolved, Symbolizer

EVERY_S = 0.4
"""Minimum time between two writes of a journal, in seconds.

It is slightly less than the time between two batches of samples, so that each batch is written at once.
"""
NO_LINES = 0.0
"""Limit of the processor time for source lines in a journal, in seconds. With 0, none are read, but lines that were
read before are used.
"""
_NO_ROWS = RowStore().rows()


@dataclass(frozen=True, slots=True)
class _Lineless:
    """A part of the journal that was written before the source lines of its frames were known, and is completed later.

    Attributes:
        number: Number of the part.
        end: Number of frames that the window had when the part was written.
        keys: Keys of the part's frames.
        frames: Its frames as they were written.
    """

    number: int
    end: int
    keys: Sequence[FrameKey]
    frames: tuple[Frame, ...]


Within = Callable[[Callable[[], Resolved]], Resolved | None]
"""Type of a function that runs a job with a time limit and returns the job's result. The job may be interrupted
anywhere. The result is None if the time was not enough.
"""


class NameProgress(Protocol):
    """The protocol by which JournalWriter finds out for which frames BackgroundSymbolizer has already resolved
    names.
    """

    @property
    def done(self) -> int: ...

    def looked_up(self, numbers: range) -> Sequence[int]: ...


class JournalWriter:
    """A writer that appends new samples and stacks of the current window to the journal of its sink, about twice a
    second.

    The caller calls close() before it writes the profile of the window.
    """

    def __init__(
        self, session: Session, naming: NamingOptions, journal: Journal, within: Within, ahead: NameProgress
    ) -> None:
        """Create the writer of a recording's journal.

        Args:
            session: The session of the recording.
            naming: Settings of the profile.
            journal: Receives the parts.
            within: Limits the time of a name lookup. After the first interruption, only known names are written.
            ahead: The background symbolizer.
        """
        self._within: Within | None = within
        self._session = session
        self._naming = naming
        self._journal = journal
        self._begun = WindowPosition()
        self._cost = RecentCost()
        self._ahead = ahead
        self._parts = 0
        self._lineless: deque[_Lineless] = deque()
        self._modules: dict[ModuleInfo, int] = {}
        self._sent = 0
        self._threads: dict[tuple[int, int], tuple[int, ThreadInfo]] = {}
        self._due = time.monotonic() + EVERY_S

    def turn(self) -> None:
        """Append the new data of the window to the journal if that is due. The caller calls this after each batch."""
        if (now := time.monotonic()) >= self._due:
            self._due = now + EVERY_S
            self._send()

    def close(self) -> None:
        """Append the new data of the window to the journal, and close the journal."""
        self._send()
        self._journal.close()

    def _send(self) -> None:
        fresh = self._session.recorder.since(self._begun)
        if fresh.upto != self._begun:
            self._begun = fresh.upto
            number, symbolizer = self._parts, self._symbolizer(known_only=True)
            frames = self._placed(symbolizer.resolve(fresh.frames))
            self._add(fresh, frames)
            if symbolizer.unread:
                self._rename({number: (frames := self._named(fresh.frames))})
            if frames:
                self._lineless.append(_Lineless(number, fresh.upto.frames, fresh.frames, frames))
        if named := self._with_lines():
            self._rename(named)

    def _add(self, fresh: WindowAdditions, frames: Sequence[Frame]) -> None:
        new, renamed = self._known(fresh.threads)
        samples, summary = self._samples(fresh.rows), self._effort()
        self._parts += 1
        self._journal.add_part(
            JournalPart(self._new_modules(), new, renamed, frames, fresh.parent, fresh.frame, samples, summary=summary)
        )

    def _rename(self, named: Mapping[int, Sequence[Frame]]) -> None:
        """Append a journal part that replaces the frames of earlier parts by frames with names resolved since.

        Args:
            named: Frames by number of the earlier part.
        """
        self._parts += 1
        self._journal.add_part(JournalPart(self._new_modules(), (), {}, (), (), (), self._samples(_NO_ROWS), named))

    def _new_modules(self) -> Sequence[ModuleInfo]:
        """Return the modules that the journal does not have yet."""
        known, self._sent = self._sent, len(self._modules)
        return tuple(self._modules)[known:]

    def _samples(self, rows: Rows) -> SampleColumns:
        naming = self._naming
        if naming.view.lock_holder:
            rows = rows.take_rows(np.flatnonzero(rows.state & SampleState.HOLDS_LOCK))
        index = {number: at for number, (at, _) in self._threads.items()}
        numbers = zip(rows.thread.tolist(), rows.labels.tolist(), strict=True)
        thread: npt.NDArray[np.int32] = np.array([index[number] for number in numbers], np.int32)
        values = amounts(rows, round(1e9 / naming.rate_hz))
        stack = np.maximum(rows.node, 0)  # the frames of a stack that is still to be completed are not known
        return SampleColumns(rows.time_ns, thread, stack, values, (rows.state | rows.taken).astype(np.int32), rows.cpu)

    def _effort(self) -> Summary:
        """Return a summary for the journal: the current counters of the recording, and the known problems of files."""
        counted, problems = self._session.recorder.counted(), self._session.diagnostics.problems
        lacking = tuple(ModuleSummary(path, "", 0, tuple(sorted(found))) for path, found in sorted(problems.items()))
        return replace(effort(counted, self._naming.rate_hz, self._cost()), modules=lacking)

    def _with_lines(self) -> dict[int, Sequence[Frame]]:
        """Return the frames of earlier journal parts that have got their source lines since, as a dict by number of the
        part.
        """
        found: dict[int, Sequence[Frame]] = {}
        done = self._ahead.done
        while self._lineless and self._lineless[0].end <= done:
            part = self._lineless.popleft()
            first = part.end - len(part.keys)
            again = [number - first for number in self._ahead.looked_up(range(first, part.end))]
            frames = list(part.frames)
            for at, frame in zip(again, self._named([part.keys[at] for at in again]), strict=True):
                frames[at] = frame
            if tuple(frames) != part.frames:
                found[part.number] = frames
        return found

    def _named(self, keys: Sequence[FrameKey]) -> tuple[Frame, ...]:
        """Resolve the names of frames for the journal. Their module numbers are indices into all modules of the
        journal.
        """
        found = self._within(lambda: self._symbolizer().resolve(keys)) if self._within is not None else None
        if found is None:
            self._within = None
            found = self._symbolizer(known_only=True).resolve(keys)
        return self._placed(found)

    def _placed(self, found: Resolved) -> tuple[Frame, ...]:
        place = [self._modules.setdefault(info, len(self._modules)) for info in found.modules]
        return tuple(
            frame if frame.module < 0 else replace(frame, module=place[frame.module]) for frame in found.frames
        )

    def _symbolizer(self, known_only: bool = False) -> Symbolizer:
        session = self._session
        return Symbolizer(
            session.images,
            session.files.names,
            session.recorder.known_spaces,
            NO_LINES,
            session.code,
            session.runtimes.line,
            session.files.starts,
            known_only,
            missing_names=Diagnostics(),
        )

    def _known(
        self, threads: Iterable[tuple[tuple[int, int], ThreadInfo]]
    ) -> tuple[tuple[ThreadInfo, ...], dict[int, ThreadInfo]]:
        """Return (threads that the journal lacks, threads whose description has changed, by their index in the
        journal).
        """
        new: list[ThreadInfo] = []
        renamed: dict[int, ThreadInfo] = {}
        for number, each in threads:
            info = replace(each, labels=join_labels(self._naming.labels, each.labels))
            at, before = self._threads.get(number, (len(self._threads), None))
            if before is None:
                new.append(info)
            elif before != info:
                renamed[at] = info
            self._threads[number] = at, info
        return tuple(new), renamed
