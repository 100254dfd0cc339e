"""Names of the window under way, looked up while nothing else is to be done: few are left when it ends.

Who tells a recording to end waits for the names. What is read of files for them (symbol tables, lines, inlined
functions, demangled names) stays in the NameCache, where the look-up at the end finds it. What is answered here is
thrown away; the journal asks for it again (keeping.py). Left to the end are frames that the window's view does not
show, because an interpreter's own debug information is large, and code that no file holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyprof.diagnostics import Diagnostics
from pyprof.model.modules import Module
from pyprof.model.profile import FrameKind
from pyprof.model.sample import SampleBatch
from pyprof.model.stacks import FrameKey, StackTable
from pyprof.model.walk import lookup_pc
from pyprof.options import ViewOptions
from pyprof.session.native_views import VIEWS, Function
from pyprof.session.session import Session
from pyprof.symbolize.symbolizer import Symbolizer

AFTER_BATCHES = 4
"""Where threads are stopped: the sampler waits for what each of the first ones teaches (worker/sampling.py), and
samples nothing meanwhile.
"""
NO_LINES = 0.0
LINES_S, MOST_LINES_S = 0.05, 0.8
"""Seconds in a turn for source lines. Where they were not enough, twice as many the next time, up to the second number;
what needs still more is left to the end.
"""


class NamesAhead:
    """Of one recording. due: something is left to be looked up."""

    def __init__(self, session: Session, shown: ViewOptions) -> None:
        self.due = False
        self._session = session
        self._native = shown.native
        self._batches = 0
        self._asked = False
        self._lines_s = LINES_S
        self._window: _Seen | None = None
        self._lines: Sequence[FrameKey] = ()

    @property
    def done(self) -> int:
        """Of the frames of the window under way, in their order: so many were looked up with lines, or are left."""
        window, stacks = self._window, self._session.recorder.stacks
        if self._asked:
            return len(stacks.frames)
        return window.done if window is not None and window.table is stacks else 0

    def looked_up(self, numbers: range) -> Sequence[int]:
        """Which of these, of the frames that are done."""
        window = self._window
        return numbers if self._asked or window is None else [number for number in numbers if number in window.wanted]

    def taken(self, batch: SampleBatch) -> None:
        """It was unwound. The sampler waits for all answers where it is what reads the target's memory."""
        self._batches += 1
        self._asked = any(space.image is None for space in batch.spaces.values())
        self.due = not self._asked and (not batch.stopped or self._batches > AFTER_BATCHES)

    def turn(self) -> bool:
        """One step: symbols of what is new, then lines of it. It may be left anywhere, and is not begun again then."""
        keys, self._lines = self._lines, ()
        if keys:
            whole = self._look_up(keys, self._lines_s)
            if whole or self._lines_s >= MOST_LINES_S:
                self._lines_s = LINES_S
            else:
                self._lines, self._lines_s = keys, 2 * self._lines_s
        elif fresh := self._fresh():
            self._look_up(fresh, NO_LINES)
            self._lines = fresh
        self.due = bool(self._lines)
        if self._window is not None and not self.due:
            self._window.done = self._window.begun
        return True

    def _fresh(self) -> list[FrameKey]:
        """Frames of stacks that came since."""
        recorder, window = self._session.recorder, self._window
        table, leaves, rows = recorder.leaves_since(window.rows if window else 0)
        if window is None or table is not window.table:
            window = self._window = _Seen(table, self._shown(table))
            table, leaves, rows = recorder.leaves_since(0)
        window.rows, window.begun = rows, len(table.frames)
        found = {at for leaf in leaves if leaf > 0 for at in window.frames(leaf)} - window.wanted
        window.wanted |= found
        return [key for key in map(table.frames.__getitem__, sorted(found)) if self._in_file(key)]

    def _shown(self, table: StackTable) -> Function:
        if self._native not in VIEWS:
            return table.key
        own = self._session.runtimes.own_modules()

        def is_own(key: FrameKey) -> bool:
            module = self._module(key)
            return module is not None and own(module)

        return VIEWS[self._native](table, is_own)

    def _module(self, key: FrameKey) -> Module | None:
        space = self._session.recorder.known_spaces.get(key.space)
        return space.module_at(lookup_pc(key.pc, key.exact)) if space else None

    def _in_file(self, key: FrameKey) -> bool:
        module = self._module(key) if key.kind == FrameKind.NATIVE else None
        return module is not None and module.has_file

    def _look_up(self, keys: Sequence[FrameKey], lines_s: float) -> bool:
        """Was there time for all?"""
        session = self._session
        names, spaces = session.files.names, session.recorder.known_spaces
        symbolizer = Symbolizer(
            session.images, names, spaces, lines_s, starts=session.files.starts, lacking=Diagnostics()
        )
        symbolizer.look_up(keys)
        return not symbolizer.out_of_time


class _Seen:
    """What was seen of a window. shown: as rewrite() takes it, of stacks that have an interpreter's frame. rows: parts
    of its rows. wanted: numbers of frames. begun, done: so many frames had come when the look-up under way began, and
    when the last one that has ended did.
    """

    def __init__(self, table: StackTable, shown: Function) -> None:
        self.table = table
        self.rows = self.begun = self.done = 0
        self.wanted: set[int] = set()
        self._shown = shown
        self._interpreted = [False]
        self._nodes: tuple[set[int], set[int]] = set(), set()

    def frames(self, leaf: int) -> list[int]:
        """Those of a stack that the view shows, as far as they were not seen in stacks of its kind."""
        table = self.table
        for node in range(len(self._interpreted), len(table)):
            is_one = table.frames[table.frame[node]].kind == FrameKind.INTERPRETER
            self._interpreted.append(is_one or self._interpreted[table.parent[node]])
        interpreted, path = self._interpreted[leaf], []
        seen = self._nodes[interpreted]
        while leaf > 0 and leaf not in seen:
            path.append(leaf)
            leaf = table.parent[leaf]
        seen.update(path)
        return [table.frame[node] for node in reversed(path) if not interpreted or self._shown(node)]
