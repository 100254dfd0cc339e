"""Samples from the kernel's perf_events: no thread is ever stopped.

The kernel copies registers and stack of a running thread into rings; here they become batches that look into the rings
themselves: nothing is copied before it is unwound, and a ring's room is given back when the next batch is asked for.
What was mapped when is known from records in the same rings.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.children import descendants
from pyprof.collectors.file_limit import raise_file_limit
from pyprof.collectors.perf_attr import MOST_STACK, Event, PerfNotAllowed, choose_event
from pyprof.collectors.perf_events import EVERY_THREAD, EventSet, Fork
from pyprof.collectors.perf_family import Family
from pyprof.collectors.perf_records import (
    FORK,
    LOST,
    LOST_SAMPLES,
    OVERHEAD,
    THROTTLE,
    Samples,
    Scan,
    parse_lost,
    parse_task,
    read_samples,
    scan,
)
from pyprof.collectors.perf_ring import LEAST_RING, Rings, online_cpus, open_rings
from pyprof.collectors.perf_size import StackSize
from pyprof.collectors.selection import Selection
from pyprof.diagnostics import Diagnostics
from pyprof.errors import AccessDenied, NoSuchProcess
from pyprof.model.arch import I386, X86_64
from pyprof.model.modules import AddressSpace
from pyprof.model.pauses import Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch, SampleKind, StackSlab
from pyprof.options import CollectOptions

I386_IN_X86_64 = [0, 2, 1, 3, 7, 6, 4, 5, 16]
"""The columns of X86_64 that hold eax, ecx, edx, ebx, esp, ebp, esi, edi and eip of 32-bit code."""

_MOST_RING = 16 << 20
_MOST_RINGS = 32 << 20
_FIRST_FLUSH_NS = 20_000_000
_SLACK_S = 0.1
_FIRST_BATCHES_S = 0.6
_LEAST_FIRST = 8192
_HOLD = 4
_BATCH = 2000
_FORWARD_NS = 2**62


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
    ) -> None:
        """ring_size: bytes of each processor's ring, a power of two; 0: chosen by the rate and by what is allowed.
        ids: gives the ids of address spaces, where several collectors make one recording. selection: further processes,
        those to come included.
        """
        self._selection = selection
        self._everything = selection is not None and selection.everything
        self._strangers: set[int] = {os.getpid()}
        self._options = options
        self._diagnostics = diagnostics
        self._pid = pid
        self._stopping = self._closed = False
        self._family = Family(ids or itertools.count(1).__next__)
        self._sampled: set[int] = set()
        self._lost = 0
        self._look: Callable[[], None] | None = None
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

    def _open(self, pid: int, ring_size: int) -> None:
        cpus = online_cpus()
        options = self._options
        tid = EVERY_THREAD if self._everything else pid
        self._event: Event = choose_event(tid, cpus[0], options)
        self._rings = open_rings(cpus, ring_size or self._ring_size(len(cpus)), bool(ring_size))
        # a ring that holds less than a few records loses them, and cannot even say so
        most = max(min(options.stack_size, MOST_STACK, self._rings.size // 4) & ~7, 8)
        # the first batches take long: tables are read for the first time
        room = max(round(self._rings.size / (options.rate_hz * _FIRST_BATCHES_S)), _LEAST_FIRST) & ~7
        self._size = StackSize(most, room)
        self._events = EventSet(self._event, options.rate_hz, self._size.bytes, self._rings)
        named = dict.fromkeys([pid, *(self._selection.pids if self._selection else ())])
        pids = [*named, *(each for each in descendants(named) if options.subprocesses)]
        self._attach(self._events, pids)
        for each in pids:
            try:
                self._family.add(each)
            except (ProcessLookupError, PermissionError):
                if each == pid and not self._everything:
                    raise

    def _attach(self, events: EventSet, pids: Iterable[int]) -> None:
        if self._everything:
            events.attach_machine()
        else:
            events.attach(pids, self._forks)

    def _add_more(self) -> None:
        """Processes that have come to fit."""
        if self._selection is None or self._events is None or self._everything:
            return
        for pid in self._selection.find(self._family.histories.keys() | self._strangers):
            try:
                self._events.attach([pid], self._forks)
                self._family.add(pid)
            except (ProcessLookupError, PermissionError):
                self._strangers.add(pid)
                self._diagnostics.count("process may not be looked at")

    def _ring_size(self, cpus: int) -> int:
        """Room for all samples of two batches, as far as that is not too much memory."""
        wanted = self._options.rate_hz * (_HOLD * self._options.flush_s + 2 * _SLACK_S) * (OVERHEAD + 8192)
        most = max(min(_MOST_RING, _MOST_RINGS // cpus), LEAST_RING)
        size = 8 << 20
        while size < wanted:
            size *= 2
        while size > most:
            size //= 2
        return size

    def batches(self) -> Iterator[SampleBatch]:
        assert self._rings is not None
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        watched: set[int] = set()
        flush_ns = round(self._options.flush_s * 1e9)
        wait_ns = _FIRST_FLUSH_NS
        last = False
        self._began_ns = begun_ns = time.monotonic_ns()
        while not last:
            for fd in self._family.alive.values():
                if fd not in watched:
                    watched.add(fd)
                    poll.register(fd, select.POLLIN)
            hold_ns = min(wait_ns, self._longest_wait_ns())
            due = time.monotonic_ns() + min(hold_ns, max(flush_ns, _FIRST_FLUSH_NS))
            while not self._stopping and (left := due - time.monotonic_ns()) > 0:
                if self._look is not None:
                    self._look()
                    left = min(left, round(1e9 / self._options.rate_hz))
                for fd, _ in poll.poll(left / 1e6):
                    if fd != self._wake:
                        poll.unregister(fd)
                        watched.discard(fd)
                        self._family.ended(fd)
                if not self._goes_on():
                    break
            last = self._stopping or not self._goes_on()
            now = time.monotonic_ns()
            if not last and now - begun_ns < hold_ns:
                yield from self._batches(Scan())
                continue
            found = self._scan(_FORWARD_NS if last else now)
            yield from self._batches(found)
            self._done_with(found)
            begun_ns = now
            wait_ns = max(min(2 * wait_ns, self._full_batch_ns()), min(flush_ns, 2 * wait_ns))
        self._ended_ns = time.monotonic_ns()

    def drain(self, last: bool = False) -> Iterator[SampleBatch]:
        """What there is now, without waiting; for whoever has a clock of their own. last: all of it."""
        poll = select.poll()
        for fd in self._family.alive.values():
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            self._family.ended(fd)
        found = self._scan(_FORWARD_NS if last else time.monotonic_ns())
        yield from self._batches(found)
        self._done_with(found)
        self._ended_ns = time.monotonic_ns()

    def _done_with(self, found: Scan) -> None:
        """The batches of a scan have been unwound."""
        found.give_back()
        self._resize()
        self._add_more()
        self._family.forget_ended()

    def _full_batch_ns(self) -> int:
        """How long samples may wait in the rings for others: a batch costs much of its time for being a batch."""
        options = self._options
        return round(1e9 * min(_BATCH / options.rate_hz, _HOLD * options.flush_s))

    def _resize(self) -> None:
        """Other events in place of those that copy too little or too much."""
        size = self._size.change()
        if not size or self._rings is None or self._events is None:
            return
        fresh = EventSet(self._event, self._options.rate_hz, size, self._rings)
        try:
            self._attach(fresh, self._family.alive)
        except (ProcessLookupError, PerfNotAllowed):
            fresh.close()
        else:
            self._events.close()
            self._events = fresh
        self._size.changed(size)

    def _goes_on(self) -> bool:
        if self._selection is not None and self._selection.lasting:
            return True
        if self._options.subprocesses:
            return bool(self._family.alive)
        named = self._selection.pids if self._selection is not None else (self._pid,)
        return any(pid in self._family.alive for pid in named)

    def _longest_wait_ns(self) -> int:
        """Until a ring is filled so far that there is still room for _SLACK_S, or at least a quarter: on one processor
        only one thread at a time is sampled.
        """
        assert self._rings is not None
        size, rate, record = self._rings.size, self._options.rate_hz, OVERHEAD + self._size.bytes
        fill = min(size * 3 // 4, max(size - _SLACK_S * rate * record, size / 4))
        return round(max(fill / record, 1) * 1e9 / rate)

    def _scan(self, until_ns: int) -> Scan:
        assert self._rings is not None
        found = Scan()
        for ring in self._rings.rings.values():
            scan(ring, self._rings.words, until_ns, found)
        found.others.sort(key=lambda record: record.time_ns)
        if found.broken:
            self._diagnostics.count("ring held something else than records", found.broken)
        return found

    def _forks(self) -> list[Fork]:
        """All forks in the rings, which stay as they are."""
        forks = []
        for record in self._scan(_FORWARD_NS).others:
            ids = parse_task(record.body) if record.kind == FORK else None
            if ids is not None:
                forks.append((record.time_ns, ids[2], ids[3]))
        return forks

    def _batches(self, found: Scan) -> list[SampleBatch]:
        """One of 64-bit code, and one of 32-bit code if there is any."""
        assert self._rings is not None
        lost = 0
        for record in found.others:
            if record.kind in (LOST, LOST_SAMPLES):
                lost += parse_lost(record.kind, record.body)
            elif record.kind == THROTTLE:
                self._diagnostics.count("kernel throttled the sampling (kernel.perf_event_max_sample_rate)")
        self._family.take(found.others)
        samples, left_out = read_samples(self._rings.words, found.samples, self._event.chains)
        if left_out:
            self._diagnostics.count("sample without registers (a thread that ends)", left_out)
        spaces, space, kept = self._place(samples)
        if lost:
            self._lost += lost
            self._diagnostics.count("sample lost: the ring was full", lost)
            for history in self._family.histories.values():
                if history.image.alive:
                    history.look()
        self._sampled.update(np.unique(samples.tid).tolist())
        n = len(samples)
        batch = SampleBatch(
            arch=X86_64,
            kind=np.full(n, SampleKind.STOPPED, np.uint8),
            time_ns=samples.time_ns,
            tid=samples.tid,
            pid=samples.pid,
            space=space,
            cpu=samples.cpu,
            weight=np.ones(n, np.int64),
            regs=samples.regs,
            stack=StackSlab(self._rings.words.view(np.uint8), samples.base, samples.offset, samples.size),
            spaces=spaces,
            tip=samples.tip,
            tips=samples.tips,
            followed=False,
        )
        if samples.narrow.any():
            narrow = batch.take(np.flatnonzero(kept & samples.narrow))
            regs = narrow.regs[:, I386_IN_X86_64] & np.uint64(I386.mask)
            return [batch.take(np.flatnonzero(kept & ~samples.narrow)), replace(narrow, arch=I386, regs=regs)]
        return [batch if kept.all() else batch.take(np.flatnonzero(kept))]

    def _place(
        self, samples: Samples
    ) -> tuple[
        dict[int, AddressSpace], np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.bool_]]
    ]:
        """(spaces, space of each sample, which samples belong to a process that we know)."""
        if self._everything:
            self._meet(set(samples.pid.tolist()))
        spaces: dict[int, AddressSpace] = {}
        space = np.zeros(len(samples), np.int32)
        for pid, history in list(self._family.histories.items()):
            lanes = np.flatnonzero(samples.pid == pid)
            space[lanes], used = history.settle(samples.time_ns[lanes], samples.regs[lanes, X86_64.pc])
            spaces.update(used)
        kept = (space > 0) | (samples.pid == os.getpid())
        if not kept.all():
            self._diagnostics.count("sample of a process that is not known", int(np.count_nonzero(~kept)))
        kept = space > 0
        if self._options.thread is not None:
            chosen = [info.tid for info in self._family.infos(set(samples.tid.tolist())) if self._wants(info)]
            kept &= np.isin(samples.tid, chosen)
        return spaces, space, kept

    def _wants(self, info: ThreadInfo) -> bool:
        return self._options.thread is None or bool(self._options.thread.search(info.name))

    def _meet(self, pids: set[int]) -> None:
        """Of the whole machine processes are known as soon as they are sampled."""
        for pid in pids - self._family.histories.keys() - self._strangers:
            try:
                self._family.add(pid)
            except (ProcessLookupError, PermissionError):
                self._strangers.add(pid)

    def learn(self, feedback: Feedback) -> None:
        self._size.learn(feedback)
        self._look = feedback.look

    def threads(self) -> list[ThreadInfo]:
        return self._family.infos(self._sampled)

    def stats(self) -> CollectorStats:
        now = self._ended_ns if self._closed else time.monotonic_ns()
        return CollectorStats(
            ticks=int((now - self._began_ns) / 1e9 * self._options.rate_hz),
            pauses=Pauses(),
            skipped=self._lost,
            unchanged=0,
            blocked=0,
            errors={},
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        refused = self._selection.refused if self._selection else ()
        note = f"Sampled by perf_events ({self._event.name}): the target was never stopped"
        if self._event.user_only:
            note += " Time in the kernel is left out: sudo sysctl kernel.perf_event_paranoid=1 includes it"
        return (note, *refused)

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
