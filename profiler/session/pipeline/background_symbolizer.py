"""Background symbolization of the current window, so that few names are left to resolve at its end.

A user who ends a recording waits for the names. This module reads symbol tables, lines, inlined functions and demangled
names into the NameCache, where the symbolization at the end finds them. The result itself is discarded, and the journal
requests it again (journal_writer.py). Two kinds of frames are left to the end: those that the window's view hides,
because an interpreter's own debug information is large, and code that no file contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyprof.model.address_space import AddressSpace, Module
from pyprof.model.profile import FrameKind
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.stacks import FrameKey, StackTable
from pyprof.model.unwind_result import lookup_pc
from pyprof.options import ViewOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.native_frame_views import VIEWS, Function, is_interpreted
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.session import Session
from pyprof.symbolize.symbolizer import Symbolizer

AFTER_BATCHES = 4
"""Number of first batches that are unwound without resolving names in the background, if threads are stopped for
samples.

The sampler waits for the feedback on each of them (worker/sampler_loop.py), and takes no samples in that time.
"""
NO_LINES = 0.0
LINES_S, MAX_LINES_S = 0.05, 0.8
"""Limit of the processor time for source lines in one step of background symbolization, in seconds, and the maximum of
that limit.

If a step does not finish, the next one gets twice the time. Frames that need more than the maximum get their lines at
the end of the window.
"""


class BackgroundSymbolizer:
    """A symbolizer that resolves names of the current window while the worker has nothing else to do.

    Attributes:
        due: True if there are names to resolve.
    """

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
        """The number of the window's first frames, in the order of the stack tree, that need no more background work.
        Their names and lines are resolved, or are left to the end of the window.
        """
        window, stacks = self._window, self._session.recorder.stacks
        if self._asked:
            return len(stacks.frames)
        return window.done if window is not None and window.table is stacks else 0

    def looked_up(self, numbers: range) -> Sequence[int]:
        """Return those of the given frame numbers whose names were resolved in the background.

        Args:
            numbers: Numbers of frames in the window's stack tree, all below the property `done`.
        """
        window = self._window
        return numbers if self._asked or window is None else [number for number in numbers if number in window.wanted]

    def taken(self, batch: SampleBatch) -> None:
        """Note that a batch was unwound, so that the names of its new frames are resolved in the background.

        Background work stops if the sampler reads the target's memory for the worker, because the sampler then waits
        for each response.
        """
        self._batches += 1
        self._asked = any(space.image is None for space in batch.spaces.values())
        self.due = not self._asked and (not batch.stopped or self._batches > AFTER_BATCHES)

    def turn(self) -> bool:
        """Run one step of background symbolization: resolve the symbols of new frames, or read their source lines.

        The deadline of the worker may interrupt a step anywhere. The step is not repeated.
        """
        keys, self._lines = self._lines, ()
        if keys:
            whole = self._look_up(keys, self._lines_s)
            if whole or self._lines_s >= MAX_LINES_S:
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

    def read_symbols(self, window: Window) -> None:
        """Read the symbol tables of the files in a closed window, but no source lines.

        If the deadline of the worker interrupts this call, the frames of the files that were already read have names.
        """
        keys = [key for key in window.stacks.frames if _in_file(key, window.spaces)]
        self._symbolizer(NO_LINES, window.spaces).read_symbols(keys)

    def _fresh(self) -> list[FrameKey]:
        """Return the keys of those frames, in files, that the window's stacks have gained since the last call."""
        recorder, window = self._session.recorder, self._window
        table, leaves, rows = recorder.leaves_since(window.rows if window else 0)
        if window is None or table is not window.table:
            window = self._window = _Seen(table, self._shown(table))
            table, leaves, rows = recorder.leaves_since(0)
        window.rows, window.begun = rows, len(table.frames)
        found = {at for leaf in leaves if leaf > 0 for at in window.frames(leaf)} - window.wanted
        window.wanted |= found
        spaces = recorder.known_spaces
        return [key for key in map(table.frames.__getitem__, sorted(found)) if _in_file(key, spaces)]

    def _shown(self, table: StackTable) -> Function:
        if self._native not in VIEWS:
            return table.key
        own = self._session.runtimes.own_modules()

        def is_own(key: FrameKey) -> bool:
            module = _find_module(key, self._session.recorder.known_spaces)
            return module is not None and own(module)

        return VIEWS[self._native](table, is_own, is_interpreted)

    def _look_up(self, keys: Sequence[FrameKey], lines_s: float) -> bool:
        """Resolve the names of frames. Return True if there was time for all source lines."""
        symbolizer = self._symbolizer(lines_s, self._session.recorder.known_spaces)
        symbolizer.look_up(keys)
        return not symbolizer.out_of_time

    def _symbolizer(self, lines_s: float, spaces: Mapping[int, AddressSpace]) -> Symbolizer:
        session = self._session
        names, starts = session.files.names, session.files.starts
        return Symbolizer(session.images, names, spaces, lines_s, starts=starts, missing_names=Diagnostics())


def _find_module(key: FrameKey, spaces: Mapping[int, AddressSpace]) -> Module | None:
    space = spaces.get(key.space)
    return space.module_at(lookup_pc(key.pc, key.exact)) if space else None


def _in_file(key: FrameKey, spaces: Mapping[int, AddressSpace]) -> bool:
    module = _find_module(key, spaces) if key.kind == FrameKind.NATIVE and not key.code else None
    return module is not None and module.has_file


class _Seen:
    """The frames of the current window that the background symbolizer has already collected. Each window has its own
    object.

    Attributes:
        table: The stack tree.
        rows: Number of rows that were read.
        wanted: Numbers of the frames to resolve.
        begun: Number of frames in the tree when the current pass started.
        done: Number of frames in the tree when the last complete pass started.

    Args:
        table: The stack tree.
        shown: View of stacks that have an interpreter frame (see rewrite()).
    """

    def __init__(self, table: StackTable, shown: Function) -> None:
        self.table = table
        self.rows = self.begun = self.done = 0
        self.wanted: set[int] = set()
        self._shown = shown
        self._interpreted = [False]
        self._nodes: tuple[set[int], set[int]] = set(), set()

    def frames(self, leaf: int) -> list[int]:
        """Return the frames that need names on one stack of the window.

        Args:
            leaf: Innermost node of the stack in the stack tree.

        Returns:
            Numbers of the frames that the profile will show, outermost first. Tree nodes that an earlier call for this
                window returned are left out.
        """
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
