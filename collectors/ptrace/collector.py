"""Samples of live processes by ptrace: each running thread is stopped for some microseconds and read.

Nobody stays attached. What a sample needs to know about sleeping threads comes from /proc (ptrace/sampler.py), the stop
itself is in ptrace/stop.py, the processes in target.py, the clock in collectors/sampling_clock.py.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.cpu_accounts import Accounts
from pyprof.collectors.linux.children import ChildFinder, child_finder
from pyprof.collectors.linux.file_limit import raise_file_limit
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.process import Target
from pyprof.collectors.ptrace.sampler import Sampler
from pyprof.collectors.ptrace.stop import Stopper
from pyprof.collectors.ptrace.threads import Thread
from pyprof.collectors.ptrace.young_threads import YoungThreads
from pyprof.collectors.sampling_clock import SamplingClock
from pyprof.collectors.targets.selection import Processes
from pyprof.diagnostics import Diagnostics
from pyprof.errors import AccessDenied, NoSuchProcess
from pyprof.model.arch import native_arches
from pyprof.model.interpreter import StackReader
from pyprof.model.modules import AddressSpace
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.options import CollectOptions

CUT = "stack longer than --stack-size, cut there"

_SLEEP_NS = 20_000_000
_FREE_NS = 100_000_000
_PENDING_SLEEP_NS = 300_000  # another thread of ours may have taken the SIGCHLD that says so


class PtraceCollector:
    """Samples pid (and its children with options.subprocesses) until they end or stop() is called.

    batches(), learn() and close() belong to one thread: the kernel ties a tracee to the thread that seized it.
    Raises NoSuchProcess, AccessDenied where the process cannot even be looked at (see attach.check_target).
    """

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        diagnostics: Diagnostics,
        note: str = "",
        ids: Callable[[], int] | None = None,
        readers: Callable[[int], StackReader] | None = None,
        selection: Processes | None = None,
        chosen: Callable[[int, int], bool] | None = None,
    ) -> None:
        """note: what the reader should know of why this collector was taken. ids: gives the ids of address spaces,
        where several collectors make one recording. readers: makes the reader of a process's interpreter, by pid.
        selection: further processes, those to come included. chosen: (pid, tid) -> is this thread sampled?
        """
        self._options = options
        self._diagnostics = diagnostics
        self._chosen = chosen
        self._next_id = ids or itertools.count(1).__next__
        self._readers = readers
        self._targets: dict[int, Target] = {}
        self._infos: dict[tuple[int, int], ThreadInfo] = {}
        self._notes: list[str] = [note] if note else []
        self._stopping = False
        self._closed = False
        self._entered = False
        self._gc = True
        self._ticks = 0
        self._ticking_ns = 0
        self._look: Callable[[], None] | None = None
        self._old_sigchld: object = None
        raise_file_limit(1 << 16)  # two descriptors a thread stay open
        arches = native_arches(os.uname().machine)
        self.source_id = self._next_id()
        self._builder = BatchBuilder(arches, ArenaMemory(options.stack_size), self.source_id)
        self._stopper = Stopper(arches, self._builder, diagnostics, options.idle)
        self._sampler = Sampler(self._stopper, self._builder, diagnostics, options)
        self._finder: ChildFinder | None = None
        self._accounts = Accounts(options)
        self._root_of: dict[int, int] = {}
        self._kin: dict[int, YoungThreads] = {}
        self._seen: set[int] = set()
        self._refused: set[int] = set()
        self._told: dict[int, AddressSpace] = {}
        try:
            self._add(pid)
        except ProcessLookupError:
            raise NoSuchProcess(f"there is no process {pid}", "ps -e lists the processes") from None
        except PermissionError:
            raise AccessDenied(f"process {pid} may not be looked at", f"pyprof doctor {pid}") from None

        self._selection = selection
        if selection is not None:
            self._notes.extend(selection.refused)
            self._add_all(selection.pids)
        if options.subprocesses:
            self._finder = child_finder(diagnostics, lambda pid: pid in self._seen or self._builder.has(pid))
            if self._finder.note:
                self._notes.append(self._finder.note)

    @property
    def refused(self) -> set[int]:
        """Threads that may not be stopped."""
        return self._sampler.refused

    def _add(self, pid: int) -> Target:
        reader = self._readers(pid) if self._readers else None
        root = self._root(pid)
        kin = self._kin.setdefault(root, YoungThreads())
        target = Target(pid, self._options, self._next_id, self._diagnostics, reader, self._chosen, kin)
        self._targets[pid] = target
        self._root_of[pid] = root
        return target

    def _root(self, pid: int) -> int:
        """The process that was asked for to whose family it belongs."""
        if not self._options.subprocesses:
            return pid
        directory = ProcDir(pid)
        try:
            return self._root_of.get(directory.stat().ppid, pid)
        finally:
            directory.close()

    def _add_all(self, pids: Iterable[int], what: str = "process") -> None:
        """Those that are not sampled yet."""
        for pid in pids:
            if pid in self._targets or pid == os.getpid():
                continue
            try:
                self._add(pid)
            except ProcessLookupError:
                self._diagnostics.count(f"{what} ended before its first sample")
                self._seen.add(pid)
            except PermissionError:
                self._refused.add(pid)
                self._diagnostics.count(f"{what} may not be looked at")

    def batches(self) -> Iterator[SampleBatch]:
        """Batches as they come, at the latest each flush_s; the first after the first tick, so that learning begins."""
        pace = SamplingClock(self._options.rate_hz, self._options.max_overhead, time.monotonic_ns(), random.random)
        self._pace = pace
        most_ns = round(self._options.flush_s * 1e9)
        flush_every, flushed = 0, time.monotonic_ns()
        try:
            self._hear_sigchld()
            self._accounts.begin(self._roots)
            while not self._stopping and (self._targets or (self._selection and self._selection.lasting)):
                if not self._sleep_until(pace.next_due(time.monotonic_ns()), flushed + max(most_ns, _SLEEP_NS)):
                    if self._stopping:
                        break
                    yield from self._flush()
                    flushed = time.monotonic_ns()
                    continue
                if self._selection is not None:
                    self._add_all(self._selection.find(self._targets.keys() | self._refused))
                yield from self._tick(pace)
                self._ticks += 1
                self._ticking_ns = max(time.monotonic_ns() - pace.start_ns, self._ticks * pace.period_ns)
                self._account()
                for kin in self._kin.values():
                    kin.rounds += 1
                now = time.monotonic_ns()
                if now - flushed >= flush_every:
                    batches = self._flush()
                    flushed = now
                    if len(batches[0]):
                        flush_every = min(max(2 * flush_every, 20_000_000), most_ns)
                    yield from batches
            self._account(force=True)
            if len(self._builder):
                yield from self._flush()
        finally:
            self._stopper.release_all()

    @property
    def _roots(self) -> dict[int, int]:
        """Of the processes that are sampled, the one that was asked for to whose family each belongs."""
        return {pid: self._root_of[pid] for pid in self._targets}

    def _account(self, force: bool = False) -> None:
        if self._accounts.look(self._roots, force, slots=(self._ticks, self._pace.skipped)):
            now = time.monotonic_ns()
            for root, kin in self._kin.items():
                kin.settle(now, self._accounts.spent_ns(root))

    def _hear_sigchld(self) -> None:
        """A kernel that may drop SIGCHLD does not tell us of stops."""
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if ignored and threading.current_thread() is threading.main_thread():
            self._old_sigchld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _sleep_until(self, due_ns: int, alive_ns: int) -> bool:
        """Sleep until a sampling time. False if it is time for a sign of life first, or to stop."""
        while not self._stopping:
            now = time.monotonic_ns()
            left = due_ns - now
            if left <= 0:
                return True
            if now >= alive_ns and left > _SLEEP_NS:
                return False
            if self._stopper.held:
                self._guarded_poll(min(left, _PENDING_SLEEP_NS))
            else:
                time.sleep(min(left, _SLEEP_NS) / 1e9)
        return False

    def _guarded_poll(self, wait_ns: int) -> None:
        try:
            self._enter()
            self._stopper.wait_pending(wait_ns)
        finally:
            self._leave()

    def _enter(self) -> None:
        """From here on nothing of ours may come between a stop and its DETACH. Called inside the try of _leave."""
        self._gc = gc.isenabled()
        self._entered = True
        self._stopper.ptrace.block_signals()
        gc.disable()

    def _leave(self) -> None:
        """An exception of a signal handler may come as soon as signals are let in, and no earlier."""
        if self._entered:
            self._entered = False
            if self._gc:
                gc.enable()
            self._stopper.ptrace.restore_signals()

    def _tick(self, pace: SamplingClock) -> Iterator[SampleBatch]:
        stopped_before = self._stopper.stopped_ns
        try:
            self._enter()
            self._stopper.poll_pending()
            if self._finder is not None:
                self._add_all(self._finder.find(self._targets), "child")
            for target in list(self._targets.values()):
                try:
                    target.look(self._builder)
                except ProcessLookupError:
                    self._end(target)
                    continue
                except PermissionError:
                    self._deny(target)
                    continue
                for thread, rounds in self._turns(target):
                    if self._builder.full:
                        self._leave()
                        yield from self._flush()
                        self._enter()
                        if self._stopping:
                            return
                    weight = 1 if thread.first_slot else rounds * pace.weight
                    thread.first_slot = False
                    try:
                        taken = self._sampler.sample(thread, target.spaces, weight)
                        if target.spaces.stale:
                            target.look_at_modules(self._builder, force=True)
                    except ProcessLookupError:
                        thread.ended = True
                        continue
                    except PermissionError:
                        self._sampler.refused.add(thread.tid)
                        self._diagnostics.count("thread may not be traced")
                        continue
                    if taken and not thread.known:
                        self._describe(target, thread)
                if target.spaces.restless:
                    with contextlib.suppress(OSError):
                        target.look_at_modules(self._builder)
        finally:
            self._leave()
        if self._look is not None:
            self._look()
        pace.stopped(self._stopper.stopped_ns - stopped_before)

    def _turns(self, target: Target) -> Iterator[tuple[Thread, int]]:
        yield from target.round()
        with contextlib.suppress(OSError):  # it has ended: the next look tells
            yield from target.late()

    def _describe(self, target: Target, thread: Thread) -> None:
        thread.known = True
        self._seen.add(target.pid)
        info = target.describe(thread.tid) or ThreadInfo(target.pid, thread.tid, "?", target.name)
        self._infos[target.pid, thread.tid] = info

    def _describe_late(self, batch: SampleBatch) -> None:
        """Threads whose first sample came after its sampling time, from a stop that was late."""
        for pid, tid in set(zip(batch.pid.tolist(), batch.tid.tolist(), strict=True)):
            target = self._targets.get(pid)
            thread = target.threads.get(tid) if target else None
            if target and thread and not thread.known:
                self._describe(target, thread)
            elif (pid, tid) not in self._infos:  # it has ended meanwhile
                names = (info.process for info in self._infos.values() if info.pid == pid)
                name = target.name if target else next(names, "?")
                self._infos[pid, tid] = ThreadInfo(pid, tid, name, name)

    def _end(self, target: Target) -> None:
        if self._root_of.get(target.pid) == target.pid:  # its account may be gone soon
            self._account(force=True)
        self._targets.pop(target.pid, None)
        target.spaces.forget_unsettled()
        target.spaces.image.alive = False
        target.close()

    def _deny(self, target: Target) -> None:
        if not target.denied:
            target.denied = True
            self._diagnostics.count("process may not be looked at any more")

    def _flush(self) -> list[SampleBatch]:
        """The batches so far, at least one. While others work on them nobody looks after a thread that stops late: none
        may be held.
        """
        deadline = time.monotonic_ns() + _FREE_NS
        while self._stopper.held and time.monotonic_ns() < deadline:
            self._guarded_poll(_PENDING_SLEEP_NS)
        self._stopper.ptrace.relax()
        for target in self._targets.values():
            target.settle(self._builder)
            for info in target.names(time.monotonic_ns()):
                self._infos[info.pid, info.tid] = info
        batches = self._builder.take()
        for batch in batches:
            self._describe_late(batch)
            self._accounts.saw(batch, lambda pid: self._root_of.get(pid, pid))
        return batches

    def learn(self, feedback: Feedback) -> None:
        self._look = feedback.look
        batch = feedback.batch
        kinds, tids, pids = batch.kind.tolist(), batch.tid.tolist(), batch.pid.tolist()
        bases, tops, missing = batch.stack.base.tolist(), feedback.top.tolist(), feedback.missing.tolist()
        stops = feedback.stop.tolist()
        for lane, kind in enumerate(kinds):
            if kind == SampleKind.UNCHANGED:
                continue
            target = self._targets.get(pids[lane])
            thread = target.threads.get(tids[lane]) if target else None
            if target is None or thread is None:
                continue
            beyond = batch.stack.beyond.get(lane)
            if beyond is not None:
                if beyond.outer is not None:
                    thread.deep.learn(beyond.outer.number, tops[lane] > 0, self._options.stack_size)
                if missing[lane]:
                    self._diagnostics.count(CUT)
                if bases[lane] <= missing[lane] < bases[lane] + beyond.length:
                    continue
            region = target.spaces.region_at(missing[lane]) if missing[lane] else None
            if missing[lane]:
                target.spaces.distrust()
            learned = thread.shape.learn(bases[lane], tops[lane], missing[lane], region)
            if learned and kind == SampleKind.BLOCKED and missing[lane]:
                thread.slept = None  # its stack is the same, but there is more of it to copy
            if kind == SampleKind.BLOCKED and stops[lane]:
                thread.stop_wanted = True

    @property
    def source_ids(self) -> frozenset[int]:
        return frozenset((self.source_id,))

    @property
    def alive(self) -> list[int]:
        """The processes that have not ended."""
        return list(self._targets)

    def news(self) -> set[int]:
        """Processes that have come, or run other code than before, since this was asked last."""
        before, self._told = self._told, {pid: target.spaces.current for pid, target in self._targets.items()}
        return {pid for pid, space in self._told.items() if before.get(pid) is not space}

    def threads(self) -> list[ThreadInfo]:
        for target in self._targets.values():
            for info in target.names(0, force=True):
                self._infos[info.pid, info.tid] = info
        return [self._infos[key] for key in sorted(self._infos)]

    def stats(self) -> CollectorStats:
        pace = getattr(self, "_pace", None)
        return CollectorStats(
            ticks=self._ticks,
            ticking_ns=self._ticking_ns,
            pauses=self._stopper.pauses.snapshot(),
            skipped=pace.skipped if pace else 0,
            unchanged=self._sampler.unchanged,
            blocked=self._sampler.blocked,
            notes=(*self._notes, *(pace.notes if pace else ())),
            accounts=self._accounts.result(),
        )

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stopping = True
        self._stopper.release_all()
        if self._finder is not None:
            self._finder.close()
        for target in self._targets.values():
            target.close()
        self._targets.clear()
        if self._old_sigchld is not None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
