"""The session of one observed target, which owns the target's object files, unwinder and recorder of samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from functools import partial
from typing import TYPE_CHECKING

from pyprof.collectors.base import Collector, CollectorState
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.interpreters.detection_symbols import read_symbols
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace, Module
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.profile import Profile
from pyprof.model.stacks import FrameKey
from pyprof.model.unwind_result import lookup_pc
from pyprof.objfile.breakpad_symbol_search import SymbolStore
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import DEFAULT_STACK_SIZE, UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.jit_code_of_recording import RuntimeCode
from pyprof.session.pipeline.batch_to_stacks import Interning
from pyprof.session.pipeline.interpreter_merge import ChainMerger
from pyprof.session.pipeline.interpreter_readers import Runtimes
from pyprof.session.pipeline.native_frame_views import is_interpreted, view, with_compiled
from pyprof.session.pipeline.profile_assembly import SOURCE_BUDGET_S, assemble
from pyprof.session.pipeline.sample_windows import HERE, Clock, Recorder, Window
from pyprof.session.pipeline.unsampled_time import with_unseen
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import Described
from pyprof.unwind.function_starts import FunctionStarts
from pyprof.unwind.module_unwind_sources import READERS, add_symbol_reader
from pyprof.unwind.unwinder import Unwinder

if TYPE_CHECKING:
    from pyprof.symbolize.name_cache import SettledFrameCache

EVERYTHING = ViewOptions(native="all")
MAX_CACHED_WINDOWS = 32
"""Number of windows for which the unwind rules of an address space are cached. They are then dropped and read again,
because the rules of new code would otherwise make them grow without limit.
"""


class InputFiles:
    """The objects that read the files of a recording's target: object files, symbol files, and interpreters' files."""

    def __init__(
        self,
        unwind: UnwindOptions,
        diagnostics: Diagnostics,
        follow_tasks: bool = False,
        stack_size: int = DEFAULT_STACK_SIZE,
    ) -> None:
        """Create the readers of the object files of a recording.

        Args:
            unwind: Options of the unwinder.
            diagnostics: Counters.
            follow_tasks: True to put the coroutines of awaiting asyncio tasks below a task's own functions.
            stack_size: Maximum size of a stack copy in bytes.
        """
        store = SymbolStore(unwind.symbols, diagnostics) if unwind.symbols else None
        self.images = ImageStore(diagnostics, symbol_store=store)
        self.readers = add_symbol_reader(store.find_mapped) if store else READERS
        self.runtimes = Runtimes(partial(read_symbols, self.images), diagnostics, follow_tasks, stack_size)
        self.starts = FunctionStarts(self.readers)
        self.names = NameCache(diagnostics)


class Session:
    """The data of one recording in the process that unwinds: its windows, stacks and names.

    Attributes:
        failure: The error that ended run() early, None if there was none.
    """

    def __init__(
        self,
        collector: CollectorState,
        unwind: UnwindOptions,
        diagnostics: Diagnostics,
        files: InputFiles | None = None,
        clock: Clock = HERE,
    ) -> None:
        """Create the session of one observed target.

        Args:
            collector: Source of the samples. It knows their threads, and gets feedback about unwound batches.
            unwind: Options of the unwinder.
            diagnostics: Counters.
            files: Readers of object files that the collector uses, too; None to make new ones.
            clock: Clocks of the samples. They differ from those of this process if the collector runs in another
                process.
        """
        self.diagnostics = diagnostics
        self.failure: Exception | None = None
        self._leaving: DelayedRemoval[str] = DelayedRemoval()
        self._windows = 0
        self._cached: dict[int, tuple[AddressSpace, int]] = {}
        """Address spaces of closed windows for which unwind rules are cached, by id. Each has the number of the first
        of these windows.
        """
        self.files = files or InputFiles(unwind, diagnostics)
        self.images, self.runtimes = self.files.images, self.files.runtimes
        self.code = RuntimeCode(self.images, unwind, diagnostics)
        self.unwinder = Unwinder(self.images, unwind, diagnostics, self.files.readers, self.code.processes)
        self.files.starts.walked = self.unwinder
        merger = ChainMerger(self.unwinder, diagnostics, self.runtimes.settled)
        self.recorder = Recorder(collector, Interning(self.unwinder, self.code, merger), diagnostics, clock)

    def run(self, collector: Collector, beat: Callable[[], None] = lambda: None) -> Window:
        """Record until the collector ends, close the collector, and return the window since the last closed one.

        Errors are stored in `failure` instead of being raised. What was recorded before an error remains valid.

        Args:
            collector: Yields the samples.
            beat: Called after each batch, at least every half second. Only this function may close windows.
        """
        try:
            for batch in collector.batches():
                self.recorder.add_batch(batch)
                beat()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self.failure = error
        finally:
            collector.close()
        return self.recorder.cut()

    def retire(self, window: Window, is_used: Callable[[AddressSpace], bool] = lambda space: False) -> Set[int]:
        """Free the memory that only a closed window needed.

        Each dlopen and each child adds address spaces, and each compiled function adds code. A recording that runs for
        days keeps only those in use.

        Args:
            window: The window.
            is_used: Returns True if later samples may belong to an address space. Its unwind rules stay, because
                reading them again for each window would cost more than the few samples of a window.

        Returns:
            Numbers of the interpreter functions in the window.
        """
        gone = self._take_gone_spaces(window, is_used)
        for number, space in gone.items():
            self.unwinder.forget(number)
            self.code.forget(space)
            self.recorder.forget(number)
        left = self.images.forget(*gone.values())
        self.unwinder.retire(left)
        self.files.starts.retire(left)
        self.diagnostics.retire(self._leaving.take_gone(self.diagnostics.problems.keys() - self.images.paths))
        self.files.names.retire({space.root for space in gone.values() if space.ended}, left)
        functions = {key.place.function for key in window.stacks.frames if key.place is not None}
        self.runtimes.retain_functions(functions)
        self.code.drop_unused(self.recorder.codes, time.monotonic_ns() - window.duration_ns)
        return functions

    def _take_gone_spaces(self, window: Window, is_used: Callable[[AddressSpace], bool]) -> dict[int, AddressSpace]:
        """Remove from the table of cached address spaces those that no sample will use again and those whose caches are
        too old. Return the removed ones.
        """
        self._windows += 1
        carried = self.recorder.spaces
        for number, space in window.spaces.items():
            self._cached.setdefault(number, (space, self._windows))
        gone = {
            number: space
            for number, (space, since) in self._cached.items()
            if number not in carried and (not is_used(space) or self._windows - since >= MAX_CACHED_WINDOWS)
        }
        for number in gone:
            del self._cached[number]
        return gone

    def _compiled(self, window: Window, key: FrameKey) -> FunctionPlace | None:
        """Return the interpreter function from which the JIT code of a frame was generated, or None."""
        if key.code:
            found: Described | None = self.code.description(key.code)
        else:
            space = window.spaces.get(key.space)
            found = self.code.late_description(space, lookup_pc(key.pc, key.exact)) if space else None
        return self.runtimes.compiled(found.name.name) if found is not None and found.name is not None else None

    def _own_modules(self) -> Callable[[Module], bool]:
        """Return a predicate that is true for modules of an interpreter or of a managed runtime."""
        is_interpreters, names = self.runtimes.own_modules(), self.code.processes.own_modules
        return lambda module: module.name in names or is_interpreters(module)

    def profile(
        self,
        window: Window,
        title: str,
        rate_hz: float,
        mode: str,
        shown: ViewOptions = EVERYTHING,
        known_only: bool = False,
        lines_s: float = SOURCE_BUDGET_S,
        settled: SettledFrameCache | None = None,
    ) -> Profile:
        """Resolve the names of a window and make a profile of it.

        Args:
            window: The window.
            title: Title of the profile.
            rate_hz: The requested sampling rate.
            mode: "cpu", "wall" or "offcpu".
            shown: Which frames and samples are shown.
            known_only: True to use only names that are already resolved.
            lines_s: Maximum processor time for source lines, in seconds.
            settled: Cache of frames for which no later lookup finds more names.
        """
        self.code.end_lookup_round()
        if not known_only:
            window = with_compiled(window, lambda key: self._compiled(window, key))
        window = view(
            window,
            shown,
            self._own_modules(),
            lambda key: self.code.is_entry(key) or (not known_only and bool(self._compiled(window, key))),
            lambda key: is_interpreted(key) or self.code.runs_function(key),
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
        return replace(profile, threads=self.code.processes.name_threads(self.runtimes.named(profile.threads)))
