"""One process that is sampled: its threads, its address spaces, its end."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.map_query import MapQuery
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.idle_subsampling import IdleSubsampling
from pyprof.collectors.ptrace.processor_share import ProcessorShare
from pyprof.collectors.ptrace.stack_shape import StackShape
from pyprof.collectors.ptrace.thread_choice import ThreadChoice, Wants
from pyprof.collectors.ptrace.threads import Thread
from pyprof.collectors.ptrace.young_threads import YoungThreads
from pyprof.collectors.targets.spaces import SpaceTracker
from pyprof.diagnostics import Diagnostics
from pyprof.model.interpreter import StackReader
from pyprof.model.profile import ThreadInfo
from pyprof.options import CollectOptions

_RELIST_NS = 50_000_000
_LIST_BUDGET = 50  # a listing that took t is followed by none for 50 t
_NAMES_NS = 1_000_000_000


class Target:
    """Raises ProcessLookupError and PermissionError from every method that looks at the process."""

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        next_id: Callable[[], int],
        diagnostics: Diagnostics,
        reader: StackReader | None = None,
        chosen: Wants | None = None,
        kin: YoungThreads | None = None,
    ) -> None:
        """reader: of its interpreter's frames, None where they are not wanted. chosen: (pid, tid) -> is this thread
        wanted? kin: the short-lived threads of its process tree.
        """
        self.pid = pid
        self.directory = ProcDir(pid)
        query = MapQuery(partial(self.directory.open, "maps"))
        try:
            self.spaces = SpaceTracker(
                self.directory,
                next_id,
                lambda: diagnostics.count("modules changed while a sample was taken"),
                query,
            )
        except BaseException:
            query.close()
            self.directory.close()
            raise
        self.threads: dict[int, Thread] = {}
        self.reader = reader
        self.name = procfs.name(pid)
        self.denied = False
        self._options = options
        self._choice = ThreadChoice(options.thread, chosen)
        self._rounds = IdleSubsampling(random.random)
        self._kin = kin or YoungThreads()
        self._count = -1
        self._relist_at = self._names_at = 0
        self._execs = 0

    def look(self, builder: BatchBuilder[ArenaMemory]) -> None:
        """Before a tick: modules and threads as they are now."""
        self.look_at_modules(builder)
        if self.spaces.exec_count != self._execs:
            self._execs = self.spaces.exec_count
            self.name = procfs.name(self.pid)
            for thread in self.threads.values():
                thread.shape = StackShape(self._options.stack_size)
                thread.arch = self.spaces.image.arch
                thread.known = False
                thread.woke()
        now = time.monotonic_ns()
        count = self.directory.thread_count()
        if count != self._count or now >= self._relist_at or any(t.ended for t in self.threads.values()):
            self._relist(count)
            after = time.monotonic_ns()
            self._relist_at = after + max(_RELIST_NS, _LIST_BUDGET * (after - now))
        if self.reader is not None:
            self.reader.look(self.spaces.current, self.threads)

    def look_at_modules(self, builder: BatchBuilder[ArenaMemory], force: bool = False) -> None:
        """Read the modules if the budget allows; samples since the last read find the space that they belong to."""
        for lane, space in self.spaces.refresh(time.monotonic_ns, force):
            builder.move(lane, space)

    def _relist(self, count: int) -> None:
        tids = self.directory.threads()
        self._choice.forget()
        self._count = count
        alive = set(tids)
        for tid in [tid for tid, thread in self.threads.items() if thread.ended or tid not in alive]:
            self.threads.pop(tid).close()
        if not tids or (len(tids) == 1 and self.directory.stat().is_zombie):
            raise ProcessLookupError(self.pid)
        for thread in self.threads.values():
            thread.no_user_stack = False
        for tid in tids:
            if tid not in self.threads:
                thread = Thread(
                    self.pid,
                    tid,
                    self.directory,
                    StackShape(self._options.stack_size),
                    self.spaces.image.arch,
                    self.reader,
                    ProcessorShare(self._kin),
                )
                try:
                    thread.open()
                except ProcessLookupError:
                    thread.close()
                    continue
                self.threads[tid] = thread
                self.spaces.distrust()  # its stack may be new

    def round(self) -> list[tuple[Thread, int]]:
        """The threads to look at now, and for how many rounds each look stands."""
        wanted = self._choice.of(self.threads, self.describe)
        return [(thread, 1) for thread in wanted] if self._options.idle else self._rounds.choose(wanted)

    def late(self) -> list[tuple[Thread, int]]:
        """Threads that have come in the place of others since look(): their number alone did not tell."""
        if not any(thread.ended for thread in self.threads.values()):
            return []
        known = set(self.threads)
        self._relist(self.directory.thread_count())
        if self.reader is not None and self.threads.keys() - known:
            self.reader.look(self.spaces.current, self.threads)
        return [(thread, 1) for thread in self._choice.of(self.threads, self.describe) if thread.tid not in known]

    def settle(self, builder: BatchBuilder[ArenaMemory]) -> None:
        """Before the batch leaves: no lane stays unsettled."""
        with contextlib.suppress(OSError):
            self.look_at_modules(builder, force=self.spaces.stale)
        self.spaces.forget_unsettled()

    def names(self, now_ns: int, force: bool = False) -> Iterator[ThreadInfo]:
        """Names of the threads that were sampled, at most once a second."""
        if now_ns < self._names_at and not force:
            return
        self._names_at = now_ns + _NAMES_NS
        for tid, thread in self.threads.items():
            if thread.known:
                info = self.describe(tid)
                if info is not None:
                    yield info

    def describe(self, tid: int) -> ThreadInfo | None:
        try:
            comm = self.directory.read(f"task/{tid}/comm")
        except OSError:
            return None
        if tid == self.pid:
            self.name = comm.rstrip(b"\n").decode("utf-8", "replace")
        return ThreadInfo(self.pid, tid, comm.rstrip(b"\n").decode("utf-8", "replace"), self.name)

    def close(self) -> None:
        for thread in self.threads.values():
            thread.close()
        self.threads.clear()
        self.spaces.close()
        self.directory.close()
