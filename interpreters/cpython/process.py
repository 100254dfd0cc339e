"""One process's CPython: found when its modules are known, its threads listed as they come, their frames read.

A model.interpreter.StackReader. In: modules and tids from the collector, memory copied in its stops. Out: chains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.cpython.capture import Copied, Copier, Habits
from pyprof.interpreters.cpython.codes import CodeBook, CodeReader
from pyprof.interpreters.cpython.layout import NONE
from pyprof.interpreters.cpython.layout import Chain as ChainKind
from pyprof.interpreters.cpython.local_values import LocalReader
from pyprof.interpreters.cpython.locate import Located, locate, too_old
from pyprof.interpreters.cpython.memory import Memory, Unreadable, gather_now
from pyprof.interpreters.cpython.names import ThreadNames
from pyprof.interpreters.cpython.runs import RunReader
from pyprof.interpreters.cpython.runtime import PyThread, Refused, Runtime, Unsettled, open_runtime, tid_of
from pyprof.interpreters.cpython.tasks import Awaiters, find_tasks
from pyprof.model.interpreter import Chain, Gather, Run, SampleState
from pyprof.model.modules import VDSO, AddressSpace
from pyprof.objfile.images import ImageStore

_RELIST_NS = 50_000_000
_RELIST_BUDGET = 50
"""A listing that took t is followed by none for 50 t."""

_NAMES_NS, _NAMES_SOON_NS, _NAMES_BUDGET = 1_000_000_000, 20_000_000, 200
"""Names of threads are read again after so long, soon after a thread came, and in a 200th of the time at most."""
_MOST_LOOKS = 20
_MOST_HOLDERS = 4
"""Of so many GILs it is asked in a stop who holds them."""
_MOST_NAMES = 1 << 14
_LOOKS_AT_NEWCOMER = 8
"""A new thread may not have a thread state at once."""
_MOST_PREPARED = 64
"""So many new threads of a version without a data stack are read before their first stop, which then reads all of a
deep stack's frames at once.
"""
_NO_STACK = memoryview(b"").cast("Q")
_GREENLET = "_greenlet."
"""In the name of the module that brings greenlets: a thread's C stack may hold frames of several of them."""
_PATIENCE = 64
"""A thread that has had no frames so often is likely to have none."""

LOST = "python function freed before its name was read"


@dataclass(slots=True)
class _Known:
    """What is known of one kernel thread. states: more than one where it runs several interpreters."""

    states: list[tuple[PyThread, Habits]] = field(default_factory=list)


class PythonProcess:
    """refusal: why no frames are read, "" if they are or there is no CPython. names: of threads, by tid, as Python gave
    them; an ended thread's stays.
    """

    def __init__(
        self,
        images: ImageStore,
        book: CodeBook,
        diagnostics: Diagnostics,
        namespace_tid: Callable[[int], int],
        follow_tasks: bool = False,
    ) -> None:
        """namespace_tid: a tid as the process's own pid namespace counts it. follow_tasks: add the coroutines of the
        tasks that await the running one.
        """
        self._follow_tasks = follow_tasks
        self._awaiters: Awaiters | None = None
        self.runtime: Runtime | None = None
        self.refusal = ""
        self.names: dict[int, str] = {}
        self._images = images
        self._book = book
        self._diagnostics = diagnostics
        self._namespace_tid = namespace_tid
        self._space: AddressSpace | None = None
        self._told = False
        self._modules: frozenset[tuple[int, str]] = frozenset()
        self._vdso: frozenset[int] = frozenset()
        self._tids: dict[int, int] = {}
        self._threads: dict[int, _Known] = {}
        self._holders: dict[int, PyThread] = {}
        self._wanted = False
        self._listed: dict[int, PyThread] = {}
        self._newcomers: dict[int, int] = {}
        self._misses: dict[int, int] = {}
        self._relist_at = self._names_at = 0
        self._copied: list[Copied] = []
        self._pending: Located | None = None
        self._others = False

    def look(self, space: AddressSpace, tids: Collection[int]) -> None:
        if space is not self._space:
            self._look_at_modules(space)
        if self._pending is not None:
            self._open(self._pending, tids)
        if self.runtime is None:
            return
        now = time.monotonic_ns()
        if now >= self._names_at:
            self.read_names()
            after = time.monotonic_ns()
            self._names_at = after + max(_NAMES_NS, _NAMES_BUDGET * (after - now))
        self._welcome(tids)
        if not self._wanted:
            return
        if now >= self._relist_at:
            self._tids = {tid: self._tids.get(tid) or self._namespace_tid(tid) for tid in tids}
            self._threads = {tid: known for tid, known in self._threads.items() if tid in self._tids}
            self._misses = {tid: misses for tid, misses in self._misses.items() if tid in self._tids}
            if len(self.names) > _MOST_NAMES:
                self.names = {tid: name for tid, name in self.names.items() if tid in self._tids}
            self.list_threads()
            self._names_at = min(self._names_at, now + _NAMES_SOON_NS)
            after = time.monotonic_ns()
            self._relist_at = after + max(_RELIST_NS, _RELIST_BUDGET * (after - now))

    def _look_at_modules(self, space: AddressSpace) -> None:
        """A new set of modules may bring a runtime (dlopen), keep it, or be another program's (exec). A program that is
        not position-independent stands where it stood before its exec: then the vDSO has moved.
        """
        self._space = space
        self._others = any(_GREENLET in module.name for module in space.modules)
        runtime = self.runtime
        if runtime is None:
            self.memory = Memory(space.read)
        else:
            self.memory.renew(space.read)
            self._wanted = True
            self._thread_names = ThreadNames(runtime, self.memory)
            self._find_tasks(space)
        modules = frozenset((module.start, module.path) for module in space.modules if module.has_file)
        vdso = frozenset(module.start for module in space.modules if module.path == VDSO)
        if vdso == self._vdso:
            if runtime is not None and (runtime.located.module.start, runtime.located.module.path) in modules:
                return
            if runtime is None and modules == self._modules:
                return
        self.runtime = self._pending = None
        self._relist_at = 0
        self._modules, self._vdso = modules, vdso
        self.refusal = ""
        located = locate(space, self._images)
        if located is None:
            old = too_old(space)
            if old:
                self._refuse(f"{old} is older than CPython 3.8")
            return
        self._pending, self._looks = located, 0

    def _find_tasks(self, space: AddressSpace) -> None:
        """asyncio may be imported at any time."""
        if not self._follow_tasks or self._awaiters is not None or self.runtime is None:
            return
        layout = self.runtime.layout
        tasks = find_tasks(space, self._images, self.memory) if layout.awaits else None
        if layout.awaits is not None and tasks is not None:
            self._awaiters = Awaiters(self.memory, layout, layout.awaits, tasks, self.codes)
        elif layout.awaits is None and not self._told:
            self._told = True
            self._diagnostics.count(
                f"--async: CPython {layout.version} does not say which tasks await which: from 3.14 on"
            )

    def _open(self, located: Located, tids: Collection[int]) -> None:
        """A runtime that has not begun yet stays pending."""
        now = time.monotonic_ns()
        if now < self._relist_at:
            return
        self._relist_at = now + _RELIST_NS
        self._tids = {tid: self._namespace_tid(tid) for tid in tids}
        inner = set(self._tids.values())
        try:
            self.runtime = open_runtime(located, self.memory, inner.__contains__)
        except Unsettled as refused:
            self._looks += 1
            if self._looks < _MOST_LOOKS:
                return
            self._refuse(str(refused))
            self._pending = None
            return
        except Refused as refused:
            self._refuse(str(refused))
            self._pending = None
            return
        if self.runtime is None:
            return
        self._pending = None
        layout = self.runtime.layout
        self.codes = CodeReader(self.memory, layout, self._book)
        self._copier = Copier(layout, self.codes.head_at, self.codes.head_size)
        self._runs = RunReader(layout, self.codes)
        self._thread_names = ThreadNames(self.runtime, self.memory)
        self._names_at = 0
        self._awaiters = None
        if self._space is not None:
            self._find_tasks(self._space)
        self._wanted, self._relist_at = True, 0
        self._threads, self._listed, self._newcomers = {}, {}, {}

    def _refuse(self, why: str) -> None:
        self.refusal = why
        self._diagnostics.count(f"python frames not read: {why}")

    def _welcome(self, tids: Collection[int]) -> None:
        """Find the thread states of new threads: many are gone before all are listed again."""
        assert self.runtime is not None
        for tid in tids:
            if tid not in self._tids:
                self._tids[tid] = self._namespace_tid(tid)
                self._newcomers[tid] = _LOOKS_AT_NEWCOMER
        self._wanted = self._wanted or len(self._tids) > 2 * len(tids) + _PATIENCE
        if not self._newcomers:
            return
        by_namespace = {inner: tid for tid, inner in self._tids.items()}
        listed = self._listed
        found: dict[int, list[PyThread]] = {}
        try:
            for thread in self.runtime.threads(
                self.memory, by_namespace.__contains__, lambda thread: listed.get(thread.address) == thread
            ):
                if by_namespace.get(thread.tid) in self._newcomers:
                    found.setdefault(by_namespace[thread.tid], []).append(thread)
        except Unreadable:
            self._wanted = True
        self._know(found)
        self._newcomers = {
            tid: looks - 1 for tid, looks in self._newcomers.items() if looks > 1 and tid in tids and tid not in found
        }

    def _know(self, found: dict[int, list[PyThread]]) -> None:
        """Their thread states are these. Versions without a data stack are read for what the first stop will need."""
        assert self.runtime is not None
        unread: list[tuple[PyThread, Habits]] = []
        for tid, states in found.items():
            known = self._threads.setdefault(tid, _Known())
            habits = {thread.address: habit for thread, habit in known.states}
            known.states = [(thread, habits.get(thread.address) or Habits()) for thread in states]
            self._listed.update((thread.address, thread) for thread in states)
            unread += [state for state in known.states if state[0].address not in habits]
        if self.runtime.layout.thread.chunk == NONE:
            for thread, habit in unread[:_MOST_PREPARED]:
                self._copier.learn(self._copier.copy(thread, habit, _NO_STACK, 0, gather_now(self.memory)))

    def list_threads(self) -> None:
        """Find the thread states of all threads."""
        assert self.runtime is not None
        self._wanted = False
        self._listed = {}
        by_namespace = {inner: tid for tid, inner in self._tids.items()}
        found: dict[int, list[PyThread]] = {}
        try:
            for thread in self.runtime.threads(self.memory, by_namespace.__contains__):
                if thread.tid in by_namespace:
                    found.setdefault(by_namespace[thread.tid], []).append(thread)
        except Unreadable:
            self._wanted = True
        holders = {thread.gil: thread for states in found.values() for thread in states if thread.gil}
        self._holders = dict(list(holders.items())[:_MOST_HOLDERS])
        self._know(found)

    def read_names(self) -> None:
        """Learn the names of threads as they are now."""
        if self.runtime is None:
            return
        names = self._thread_names.read()
        for tid, known in self._threads.items():
            for thread, _ in known.states:
                name = names.get(thread.ident)
                if name:
                    self.names[tid] = name

    def thread_states(self, tid: int) -> list[PyThread]:
        known = self._threads.get(tid)
        return [thread for thread, _ in known.states] if known else []

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        self._copied = []
        if self.runtime is None:
            return
        known = self._threads.get(tid)
        if known is None or not known.states:
            known = self._guess(tid, gather)
        if known is not None:
            self._copier.several = self._others
            for thread, habits in known.states:
                copied = self._copier.copy(thread, habits, stack, base, gather)
                if copied.stale:
                    self._wanted = True
                else:
                    self._copied.append(copied)

    def _guess(self, tid: int, gather: Gather) -> _Known | None:
        """A thread that is not listed yet may be the one that holds the GIL."""
        assert self.runtime is not None
        misses = self._misses[tid] = self._misses.get(tid, 0) + 1
        self._wanted = self._wanted or misses < _PATIENCE or misses % _PATIENCE == 0
        wanted = self._tids.get(tid)
        if not wanted:
            return None
        memory = Memory(lambda avma, size: bytes(gather([(avma, size)])))
        layout = self.runtime.layout
        for gil, sibling in self._holders.items():
            try:
                at = memory.u64(gil + layout.gil_holder)
                if not at or memory.u64(at + layout.thread.interp) != sibling.interpreter:
                    continue
                ident = memory.u64(at + layout.thread.thread_id)
                native = layout.thread.native_id
                own = memory.u64(at + native) if native >= 0 else tid_of(memory, ident, wanted.__eq__)
            except Unreadable:
                continue
            if own == wanted:
                thread = PyThread(
                    at, wanted, ident, sibling.interpreter, sibling.interpreter_id, gil, sibling.collecting
                )
                known = self._threads[tid] = _Known([(thread, Habits())])
                return known
        return None

    def local_values(self, tid: int, redact: bool) -> list[tuple[int, dict[str, str]]]:
        """(frame, name -> bounded repr) of the frames of a thread as they are now, innermost first. Nobody stops the
        thread: whoever asks compares the frames with those that were sampled.
        """
        if self.runtime is None:
            return []
        layout, memory = self.runtime.layout, self.memory
        self.copy(tid, _NO_STACK, 0, gather_now(memory))
        reader = LocalReader(memory, layout, redact)
        found = []
        for copied in self._copied:
            for words, at, avma in copied.frames:
                pc = None if self._runs.is_shim(words, at) else self._runs.frame(copied, words, at)
                if pc is not None:
                    found.append((pc, reader.read(words[at + (layout.frame.code >> 3)] & layout.frame.code_mask, avma)))
        return found

    def _with_awaiters(self, copied: Copied, runs: list[Run]) -> list[Run]:
        """The runs, and above the running task's coroutine those of the tasks that await it."""
        awaiters = self._awaiters
        task = awaiters.running(copied.thread.address) if awaiters is not None else 0
        if awaiters is None or not task:
            return runs
        frame = awaiters.coroutine_frame(task)
        if frame not in copied.outermost:
            return runs
        at = copied.outermost.index(frame)
        runs[at] = replace(runs[at], frames=runs[at].frames + awaiters.frames(task))
        return runs

    def learn(self) -> None:
        if self.runtime is not None:
            for copied in self._copied:
                self._copier.learn(copied)

    def take(self) -> Chain | None:
        if not self._copied or self.runtime is None:
            return None
        self.learn()
        layout = self.runtime.layout
        runs: list[Run] = []
        state, problem = SampleState.INTERPRETED, ""
        lost = self.codes.lost
        for copied in self._copied:
            self._copier.finish(copied)
            runs += self._with_awaiters(copied, self._runs.runs(copied))
            problem = problem or copied.problem
            lock, collecting = copied.lock, copied.collecting
            if lock and copied.thread.gil:
                locked = lock[layout.gil_locked >> 3] & 0xFFFFFFFF == 1
                if locked and lock[layout.gil_holder >> 3] == copied.thread.address:
                    state |= SampleState.HOLDS_LOCK
                    shift = 8 * (copied.thread.collecting & 7)
                    if collecting and collecting[0] >> shift & 0xFFFFFFFF:
                        state |= SampleState.COLLECTING
        if self.codes.lost > lost:
            self._diagnostics.count(LOST, self.codes.lost - lost)
        marked = layout.chain not in (ChainKind.OBJECTS,)
        if marked and len(self._copied) > 1:
            runs.sort(key=lambda run: run.marker)
        marks = self._copied[0].marks if len(self._copied) == 1 else ()
        return Chain(tuple(runs), state, problem, self.runtime.located.evaluators, marked, marks, self._others)
