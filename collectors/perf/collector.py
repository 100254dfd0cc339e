"""Samples from the kernel's perf_events: no thread is ever stopped.

The kernel copies registers and stack of a running thread into rings; here they become batches that look into the rings
themselves: nothing is copied before it is unwound, and a ring's room is given back when the next batch is asked for.
What was mapped when is known from records in the same rings.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.cpu_accounts import Accounts
from pyprof.collectors.linux.children import descendants
from pyprof.collectors.linux.file_limit import raise_file_limit
from pyprof.collectors.perf.attr import MOST_STACK, PerfNotAllowed
from pyprof.collectors.perf.batches import BatchMaker, Elsewhere, Mask, Taken
from pyprof.collectors.perf.copy_size import HOLD, SLACK_S, StackSize, ring_size
from pyprof.collectors.perf.event_set import EventSet, Fork, forks_of
from pyprof.collectors.perf.news import News
from pyprof.collectors.perf.processes import TrackedProcesses
from pyprof.collectors.perf.records import OVERHEAD, U64, Samples, Scan, scan
from pyprof.collectors.perf.ring import Rings, online_cpus, open_rings
from pyprof.collectors.perf.scope import choose_scope
from pyprof.collectors.perf.ticks import Ticks
from pyprof.collectors.targets.selection import Selection
from pyprof.diagnostics import Diagnostics
from pyprof.errors import AccessDenied, NoSuchProcess
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.options import CollectOptions

USER_ONLY = "Time in the kernel is left out: sudo sysctl kernel.perf_event_paranoid=1 includes it"

_FIRST_FLUSH_NS = 20_000_000
_TRIAL_NS, _LONG_TRIAL_NS = 1_000_000, 10_000_000
_FIRST_BATCHES_S = 0.6
_LEAST_FIRST = 8192
_BATCH = 2000
_MOST_LOST, _SOON_S = 32, 0.25
_FORWARD_NS = 2**62
_WATCH_NS = 10_000_000


class PerfCollector:
    """Samples pid (and its children with options.subprocesses) until they end or stop() is called.

    A sample is taken each 1/rate seconds of a thread's own time on a processor: threads that do not run cost nothing.
    Raises PerfNotAllowed where the kernel refuses, NoSuchProcess, AccessDenied.
    """

    def __init__(
        self,
        pid: int,
        options: CollectOptions,
        diagnostics: Diagnostics,
        ring_size: int = 0,
        ids: Callable[[], int] | None = None,
        selection: Selection | None = None,
        before_exec: bool = False,
    ) -> None:
        """ring_size: bytes of each processor's ring, a power of two; 0: chosen by the rate and by what is allowed.
        ids: gives the ids of address spaces, where several collectors make one recording. selection: further processes,
        those to come included. before_exec: pid is to become another program, and only that one is wanted.
        """
        self._selection = selection
        self._before_exec = before_exec
        self._everything = selection is not None and selection.everything
        self._options = options
        self._diagnostics = diagnostics
        self._pid = pid
        self._stopping = self._closed = False
        next_id = ids or itertools.count(1).__next__
        self.source_id = next_id()
        self._family = TrackedProcesses(next_id, options.subprocesses)
        self._look: Callable[[], None] | None = None
        self._trial = True
        self.joined: Callable[[list[int]], None] = lambda pids: None
        self.watch: Callable[[], bool] | None = None
        self.slots: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._told: set[int] = set()
        self._leaving = False
        self._began_ns = self._ended_ns = time.monotonic_ns()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._rings: Rings | None = None
        self._events: EventSet | None = None
        raise_file_limit(1 << 20)  # a descriptor for each thread and processor
        try:
            self._open(pid, ring_size)
        except ProcessLookupError:
            self.close()
            raise NoSuchProcess(f"there is no process {pid}", "list processes with: ps -e") from None
        except PerfNotAllowed:
            self.close()
            raise
        except PermissionError:
            self.close()
            raise AccessDenied(f"process {pid} may not be looked at", f"try: pyprof doctor {pid}") from None

    def _open(self, pid: int, size: int) -> None:
        cpus = online_cpus()
        options = self._options
        self._scope = choose_scope(pid, cpus[0], options, self._everything)
        self._rings = open_rings(cpus, size or ring_size(options, len(cpus)), bool(size))
        # a ring that holds less than a few records loses them, and cannot even say so
        most = max(min(options.stack_size, MOST_STACK, self._rings.size // 4) & ~7, 8)
        # the first batches take long: tables are read for the first time
        room = max(round(self._rings.size / (options.rate_hz * _FIRST_BATCHES_S)), _LEAST_FIRST) & ~7
        self._size = StackSize(most, room)
        self._family.filters = self._scope.filtered
        self._make = BatchMaker(self._rings, self._scope, self._family, options, self._diagnostics, self.source_id)
        self._accounts = Accounts(options, self._everything, self.user_only, even=self._scope.processors)
        self._ticks = Ticks(options.rate_hz, self.user_only or self._scope.processors)
        self._news = News(self._rings, self._is_sampled, options.subprocesses)
        self._begin()
        if self._before_exec:
            self._family.histories[pid].hide()

    def _begin(self) -> None:
        """Events on all that there is now."""
        assert self._rings is not None
        self._events = EventSet(self._scope.event, self._options.rate_hz, self._size.bytes, self._rings)
        named = dict.fromkeys([self._pid, *(self._selection.pids if self._selection else ())])
        if self._scope.processors:  # before the children are looked for: those to come are told of then
            self._scope.attach(self._events, named, self._forks)
        pids = [*named, *(each for each in descendants(named) if self._options.subprocesses)]
        if not self._scope.processors:
            self._scope.attach(self._events, pids, self._forks)
        for pid in pids:
            try:
                self._family.meet(pid)
            except (ProcessLookupError, PermissionError):
                if pid == self._pid and not self._everything:
                    raise
        self._accounts.begin(self._family.roots)
        self._told.update(pids)

    def _pause(self) -> None:
        """No samples while the tables that the first ones need are read: that takes longer than the rings have room."""
        if self._events is not None:
            self._ticks.close(self._events)
            self._events = None

    def _resume(self) -> None:
        late = self._scan(_FORWARD_NS)
        self._ticks.took(late, self._make.lost, None)
        self._family.take(late.others)
        late.give_back()
        self._size.settle()
        self._narrow()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._begin()
        self._began_ns = time.monotonic_ns()

    def _add_more(self) -> None:
        """Processes that have come to fit."""
        if self._selection is None or self._events is None or self._everything:
            return
        for pid in self._selection.find(self._family.histories.keys() | self._make.untracked):
            try:
                if not self._scope.processors:
                    self._events.attach([pid], self._forks)
                self._family.add(pid)
                self._told.add(pid)
                self.joined([pid])
            except (ProcessLookupError, PermissionError):
                self._make.untracked.add(pid)
                self._diagnostics.count("process may not be looked at")

    def batches(self) -> Iterator[SampleBatch]:
        assert self._rings is not None
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        watched: set[int] = set()
        flush_ns = round(self._options.flush_s * 1e9)
        wait_ns = _TRIAL_NS if self._trial else _FIRST_FLUSH_NS
        last = self._leaving = False
        begun_ns = time.monotonic_ns()
        while not last and not self._leaving:
            for fd in self._family.alive.values():
                if fd not in watched:
                    watched.add(fd)
                    poll.register(fd, select.POLLIN)
            hold_ns = min(wait_ns, self._longest_wait_ns())
            due = min(begun_ns + hold_ns, time.monotonic_ns() + max(flush_ns, _FIRST_FLUSH_NS))
            while not self._stopping and (left := due - time.monotonic_ns()) > 0:
                if self._look is not None:
                    self._look()
                    left = min(left, round(1e9 / self._options.rate_hz))
                if self.watch is not None:
                    if self.watch():
                        break
                    left = min(left, _WATCH_NS)
                for fd, _ in poll.poll(left / 1e6):
                    if fd != self._wake:
                        poll.unregister(fd)
                        watched.discard(fd)
                        self._family.ended(fd)
                if not self.goes_on:
                    break
            if self._leaving:
                break
            last = self._stopping or not self.goes_on
            now = time.monotonic_ns()
            if not last and now - begun_ns < hold_ns:
                yield from self._make.batches(Scan())
                continue
            trial = self._trial
            yield from self._hand_out(_FORWARD_NS if last else now)
            begun_ns = max(now, self._began_ns)
            if trial:
                wait_ns = min(2 * wait_ns, _LONG_TRIAL_NS) if self._trial else _FIRST_FLUSH_NS
            else:
                wait_ns = max(min(2 * wait_ns, self._full_batch_ns()), min(flush_ns, 2 * wait_ns))
        self._ended_ns = time.monotonic_ns()

    def drain(self, last: bool = False) -> Iterator[SampleBatch]:
        """What there is now, without waiting; for whoever has a clock of their own. last: all of it."""
        self._hear_of_ends()
        yield from self._hand_out(_FORWARD_NS if last else time.monotonic_ns())
        self._ended_ns = time.monotonic_ns()

    def _hear_of_ends(self) -> None:
        poll = select.poll()
        for fd in self._family.alive.values():
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            self._family.ended(fd)

    def take(self, until_ns: int, switched: Samples, words: U64) -> Taken:
        """What there is until then, and further samples of that time, in other rings; done_with() is to be called."""
        self._hear_of_ends()
        found = self._scan(until_ns)
        taken = self._make.take(found, switched, words)
        self._ticks.took(found, self._make.lost, self._events)
        self._ended_ns = time.monotonic_ns()
        return taken

    def done_with(self, found: Scan) -> None:
        """All batches of it have been unwound."""
        found.give_back()
        if self._events is not None:
            self._events.hear(found.others)
        self._resize()
        self._make.forget_strangers()
        self._add_more()
        self._family.forget_ended()

    def without_trial(self) -> None:
        """The first samples are like all others."""
        self._trial = False
        self._size.settle()
        self._resize_to(self._size.bytes)

    def _hand_out(self, until_ns: int) -> Iterator[SampleBatch]:
        """What is in the rings, whose room is given back when it has been unwound."""
        found = self._scan(until_ns)
        self._ticks.took(found, self._make.lost, self._events)
        force = self._trial or until_ns == _FORWARD_NS
        self._accounts.look(self._family.roots, force, self.slots())
        first = self._trial and bool(found.samples)
        if first:
            self._pause()
        for batch in self._make.batches(found):
            self.saw(batch)
            yield batch
        if first:
            found.give_back()
            self._trial = False
            self._resume()
            self._family.forget_ended()
        else:
            self.done_with(found)

    def saw(self, batch: SampleBatch) -> None:
        """Samples of its processes, whoever took them."""
        self._accounts.saw(batch, self._family.root_of)

    def _full_batch_ns(self) -> int:
        """How long samples may wait in the rings for others: a batch costs much of its time for being a batch."""
        options = self._options
        return round(1e9 * min(_BATCH / options.rate_hz, HOLD * options.flush_s))

    def _resize(self) -> None:
        """Other events in place of those that copy too little or too much."""
        if self._narrow():
            self._resize_to(self._size.bytes)
        elif size := self._size.change():
            self._resize_to(size)

    def _narrow(self) -> bool:
        """Leave the processors, where what others do there fills the rings too soon?"""
        assert self._rings is not None
        soon = self._size.wanted * self._options.rate_hz * _SOON_S > self._rings.size / 2
        if not self._scope.filtered or not (soon or self._make.lost > _MOST_LOST):
            return False
        self._scope = self._scope.narrowed()
        return True

    def _resize_to(self, size: int) -> None:
        if self._rings is None or self._events is None:
            return
        fresh = EventSet(self._scope.event, self._options.rate_hz, size, self._rings)
        try:
            self._scope.attach(fresh, self._family.alive, self._forks)
        except (ProcessLookupError, PerfNotAllowed):
            fresh.close()
        else:
            self._ticks.close(self._events)
            self._events = fresh
        self._size.changed(self._events.stack_size)

    @property
    def alive(self) -> list[int]:
        """The processes that have not ended."""
        return list(self._family.alive)

    def news(self) -> set[int]:
        """Processes that have come, or run other code than before, since this was asked last; some may have ended."""
        told, self._told = self._told, set()
        return told | self._news.look()

    def follows(self, pid: int) -> bool:
        """Is it a process of the recording, perhaps one whose birth was not taken in yet?"""
        return self._news.knows(pid)

    def _is_sampled(self, pid: int) -> bool:
        named = self._selection.pids if self._selection is not None else (self._pid,)
        lasting = self._selection is not None and self._selection.lasting
        return pid in self._family.alive and (self._options.subprocesses or lasting or pid in named)

    def known(self, pid: npt.NDArray[np.integer]) -> Mask:
        """Which of these are processes of the recording? They need not have been sampled."""
        return self._make.known(pid)

    def shown(self, tid: npt.NDArray[np.integer]) -> Mask:
        """Which of these threads, never sampled perhaps, are asked for and can be named? threads() has them then."""
        return self._make.shown(tid)

    @property
    def goes_on(self) -> bool:
        """Is there still anything to sample?"""
        if self._selection is not None and self._selection.lasting:
            return True
        if self._options.subprocesses:
            return bool(self._family.alive)
        named = self._selection.pids if self._selection is not None else (self._pid,)
        return any(pid in self._family.alive for pid in named)

    def _longest_wait_ns(self) -> int:
        """Until a ring is filled so far that there is still room for SLACK_S, or at least a quarter: on one processor
        only one thread at a time is sampled. Where all that runs there is, others included, until half of it is.
        """
        assert self._rings is not None
        size, rate, record = self._rings.size, self._options.rate_hz, OVERHEAD + self._size.bytes
        fill = min(size // 2 if self._scope.filtered else size * 3 // 4, max(size - SLACK_S * rate * record, size / 4))
        return round(max(fill / record, 1) * 1e9 / rate)

    def _scan(self, until_ns: int) -> Scan:
        assert self._rings
        found = Scan()
        for ring in self._rings.rings.values():
            scan(ring, self._rings.words, until_ns, found)
        found.others.sort(key=lambda record: record.time_ns)
        if found.broken:
            self._diagnostics.count("ring held something else than records", found.broken)
        return found

    def _forks(self) -> list[Fork]:
        """All forks in the rings, which stay as they are."""
        return forks_of(self._scan(_FORWARD_NS).others)

    def learn(self, feedback: Feedback) -> None:
        self._size.learn(feedback)
        self._look = feedback.look

    def leave(self, elsewhere: Elsewhere) -> None:
        """End batches() when what was taken has been handed out; drain() goes on, or batches() another time. elsewhere:
        which samples are not wanted any more, for somebody else takes them by stops.
        """
        self._leaving = True
        self._make.elsewhere = elsewhere
        self._size.forget()

    def threads(self) -> list[ThreadInfo]:
        return self._family.infos(self._make.sampled)

    def stats(self) -> CollectorStats:
        return CollectorStats(
            ticks=self._ticks.count,
            ticking_ns=self._ticks.ticking_ns,
            skipped=self._make.lost,
            notes=self._notes(),
            accounts=self._accounts.result(),
        )

    def _notes(self) -> tuple[str, ...]:
        refused = self._selection.refused if self._selection else ()
        note = f"Sampled by perf_events ({self._scope.event.name})"
        if self._make.elsewhere is None:
            note += ": the target was never stopped"
        return (note, *((USER_ONLY,) if self.user_only else ()), *refused)

    @property
    def user_only(self) -> bool:
        """Is time in the kernel left out?"""
        return self._scope.event.user_only

    def stop(self) -> None:
        self._stopping = True
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ended_ns = time.monotonic_ns()
        if self._events is not None:
            self._events.close()
        if self._rings is not None:
            self._rings.close()
        self._family.close()
        os.close(self._wake)


__all__ = ["PerfCollector", "PerfNotAllowed"]
