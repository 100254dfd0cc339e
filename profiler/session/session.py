"""One target under observation: collector, images, unwinder and recorder, tied together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from functools import partial
from typing import TYPE_CHECKING

from pyprof.collectors.base import Collector
from pyprof.collectors.thread_lives import Leaving
from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.symbols import read_symbols
from pyprof.model.interpreter import FunctionPlace
from pyprof.model.profile import Profile
from pyprof.model.stacks import FrameKey
from pyprof.model.walk import lookup_pc
from pyprof.objfile.breakpad.symbol_store import SymbolStore
from pyprof.objfile.images import ImageStore
from pyprof.options import DEFAULT_STACK_SIZE, UnwindOptions, ViewOptions
from pyprof.records import replace
from pyprof.runtime_code.code import RuntimeCode
from pyprof.session.assemble import SOURCE_BUDGET_S, assemble
from pyprof.session.chain_merger import ChainMerger
from pyprof.session.interning import Interning
from pyprof.session.recorder import HERE, Clock, Recorder, Window
from pyprof.session.runtimes import Runtimes
from pyprof.session.unfollowed import Unfollowed
from pyprof.session.unseen import with_unseen
from pyprof.session.views import view, with_compiled
from pyprof.symbolize.described import Described
from pyprof.symbolize.name_cache import NameCache
from pyprof.unwind.function_starts import FunctionStarts
from pyprof.unwind.sources import READERS, with_symbols
from pyprof.unwind.unwinder import Unwinder

if TYPE_CHECKING:
    from pyprof.symbolize.settled_frames import SettledFrames

EVERYTHING = ViewOptions(native="all")


class RecordingFiles:
    """What a recording reads besides samples: object files, symbol files, the interpreters of its processes."""

    def __init__(
        self,
        unwind: UnwindOptions,
        diagnostics: Diagnostics,
        follow_tasks: bool = False,
        stack_size: int = DEFAULT_STACK_SIZE,
    ) -> None:
        """follow_tasks, stack_size: see interpreters.base.InterpreterContext."""
        store = SymbolStore(unwind.symbols, diagnostics) if unwind.symbols else None
        self.images = ImageStore(diagnostics, symbol_store=store)
        self.readers = with_symbols(store.find_mapped) if store else READERS
        self.runtimes = Runtimes(partial(read_symbols, self.images), diagnostics, follow_tasks, stack_size)
        self.starts = FunctionStarts(self.readers)
        self.names = NameCache(diagnostics)


class Session:
    """Owns the loop; the collector that it is given is closed with it.

    unfollowed: watches what children spend that the recording leaves out, None where it leaves none out.
    """

    def __init__(
        self,
        collector: Collector,
        unwind: UnwindOptions,
        diagnostics: Diagnostics,
        files: RecordingFiles | None = None,
        clock: Clock = HERE,
    ) -> None:
        """files: given where the collector reads interpreters' frames by them. clock: the collector's, where that is
        elsewhere.
        """
        self.collector = collector
        self.diagnostics = diagnostics
        self.failure: Exception | None = None
        self.unfollowed: Unfollowed | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._leaving: Leaving[str] = Leaving()
        self.files = files or RecordingFiles(unwind, diagnostics)
        self.images, self.runtimes = self.files.images, self.files.runtimes
        self.code = RuntimeCode(self.images, unwind, diagnostics)
        self.unwinder = Unwinder(self.images, unwind, diagnostics, self.files.readers, self.code)
        self.files.starts.walked = self.unwinder
        merger = ChainMerger(self.unwinder, diagnostics, self.runtimes.settled)
        self.recorder = Recorder(collector, Interning(self.unwinder, self.code, merger), diagnostics, clock)

    def run(self, beat: Callable[[], None]) -> Window:
        """Record until the collector ends; returns what was recorded since the last cut.

        beat: called after each batch, at least each half second; only it may cut. Never raises for what goes wrong on
        the way: failure has it, and what was recorded until then is good.
        """
        try:
            for batch in self.collector.batches():
                self.recorder.add(batch)
                if self.unfollowed is not None:
                    self.unfollowed.look()
                beat()
        except Exception as error:
            self.failure = error
        finally:
            self.close()
        return self.cut()

    def stop(self) -> None:
        """End run(), soon. From any thread, or a signal handler."""
        with self._lock:
            if not self._closed:
                self.collector.stop()

    def close(self) -> None:
        """Safe to call twice."""
        with self._lock:
            self._closed = True
            self.collector.close()

    def cut(self) -> Window:
        """Close the window and begin the next."""
        window = self.recorder.cut()
        return replace(window, unfollowed=self.unfollowed.take()) if self.unfollowed is not None else window

    def look(self) -> Window:
        """What the window under way has so far, good until the next batch; nothing is cut."""
        window = self.recorder.look()
        return replace(window, unfollowed=self.unfollowed.so_far()) if self.unfollowed is not None else window

    def part(self) -> Window:
        """What came to the window under way since the last part. What children spend is only known of all of it."""
        return self.recorder.part()

    def retire(self, window: Window) -> Set[int]:
        """A closed window is done with: what only it needed goes. Address spaces come and go with each dlopen and each
        child, code with each function that is compiled: a recording of days keeps only those in use. Returns the
        numbers of the interpreters' functions that it had.
        """
        for space in window.spaces.keys() - self.recorder.spaces:
            self.unwinder.forget(space)
            self.code.forget(window.spaces[space])
            self.recorder.forget(space)
        left = self.images.forget(*(window.spaces[number] for number in window.spaces.keys() - self.recorder.spaces))
        self.unwinder.retire(left)
        self.files.starts.retire(left)
        self.diagnostics.retire(self._leaving.settle(self.diagnostics.problems.keys() - self.images.paths))
        gone = {
            space.root for number, space in window.spaces.items() if space.ended and number not in self.recorder.spaces
        }
        self.files.names.retire(gone, left)
        functions = {key.place.function for key in window.stacks.frames if key.place is not None}
        self.runtimes.keep(functions)
        self.code.keep(self.recorder.codes, time.monotonic_ns() - window.duration_ns)
        return functions

    def _compiled(self, window: Window, key: FrameKey) -> FunctionPlace | None:
        """The interpreter's function for which a frame's code was generated; None if there is none."""
        if key.code:
            found: Described | None = self.code.described(key.code)
        else:
            space = window.spaces.get(key.space)
            found = self.code.late(space, lookup_pc(key.pc, key.exact)) if space else None
        return self.runtimes.compiled(found.name.name) if found is not None and found.name is not None else None

    def profile(
        self,
        window: Window,
        title: str,
        rate_hz: float,
        mode: str,
        shown: ViewOptions = EVERYTHING,
        known_only: bool = False,
        lines_s: float = SOURCE_BUDGET_S,
        settled: SettledFrames | None = None,
    ) -> Profile:
        """Look the window's names up. known_only: those that were looked up before, no others. lines_s: most seconds
        for source lines. settled: see Symbolizer.
        """
        self.code.named()
        if not known_only:
            window = with_compiled(window, lambda key: self._compiled(window, key))
        window = view(
            window,
            shown,
            self.runtimes.own_modules(),
            lambda key: not known_only and bool(self._compiled(window, key)),
            self.runtimes.lockless,
        )
        if not shown.lock_holder:
            window = with_unseen(window)
        profile = assemble(
            window,
            self.images,
            self.files.names,
            self.runtimes.line,
            title=title,
            rate_hz=rate_hz,
            mode=mode,
            code=self.code,
            starts=self.files.starts,
            known_only=known_only,
            lines_s=lines_s,
            settled=settled,
        )
        self.runtimes.read_names()
        return replace(profile, threads=self.runtimes.named(profile.threads))
