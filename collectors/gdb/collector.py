"""A collector for a target behind a stub of the GDB remote serial protocol: gdbserver, qemu, OpenOCD, J-Link.

connection.py makes the connection, stub.py has the requests, run_control.py stops the target, remote_mappings.py reads
mappings. On every way out the target is detached or continued, so that it runs on.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import BatchBuilder, BytesMemory, Lane, split_at_flushes
from pyprof.collectors.gdb.connection import connect_target
from pyprof.collectors.gdb.remote_mappings import RemoteSpaces
from pyprof.collectors.gdb.run_control import Control, Stepping
from pyprof.collectors.gdb.stub import ThreadId
from pyprof.collectors.gdb.threads import RemoteThread, RemoteThreads
from pyprof.collectors.sampling_clock import SamplingClock
from pyprof.diagnostics import Diagnostics
from pyprof.errors import ConnectionLost, RemoteError
from pyprof.model.arch import Arch
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import said
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind
from pyprof.options import CollectOptions, RemoteOptions

_SIGN_OF_LIFE_NS = 200_000_000
_OTHER_SIZE = 16 << 10
_SOURCE = 1
_MAX_BYTES = 64 << 20
_FIRST, _FIRST_OF_PROCESS = 4 << 10, 32 << 10
"""Number of stack bytes that are copied first, on a bare target and in a process. The stack of a microcontroller is
small, and its link slow.
"""


class GdbRemoteCollector:
    """A collector that samples one target behind a GDB stub. If its creation fails, the stub is released.

    Raises:
        ConnectionLost: The stub does not answer.
        RemoteError: The stub's answers are not usable.
        NotTraceable: The stub has no target.
        UnsupportedArchitecture: The target's architecture is not supported.
        UsageError: The address is not valid.
    """

    def __init__(self, remote: RemoteOptions, options: CollectOptions, diagnostics: Diagnostics) -> None:
        self._options = options
        self._diagnostics = diagnostics
        self._timed = bool(options.flush_s) and not remote.step
        self._stopping = False
        self._ticks = self._ticking_ns = 0
        self._due_ns: int | None = None
        self._infos: dict[int, ThreadInfo] = {}
        self._clock = SamplingClock(options.rate_hz, options.max_overhead, time.monotonic_ns(), random.random)
        self._target = target = connect_target(remote, not options.flush_s, diagnostics)
        self._spaces = RemoteSpaces(target.modules, target.memory, target.files, remote.sysroot)
        first = _FIRST_OF_PROCESS if target.modules.is_process else _FIRST
        self._threads = RemoteThreads(target.stub, target.pid, options.stack_size, first)
        self._batch = BatchBuilder([target.arch], BytesMemory(_MAX_BYTES), _SOURCE, target.registers.unknown)
        self._notes = {"control": target.control.note} if target.control.note else {}

    @property
    def pid(self) -> int:
        """The pid of the GDB stub's target, 0 if the stub has no processes."""
        return self._target.pid

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def path(self) -> str:
        """Path of the program in the target."""
        return self._target.path

    @property
    def arch(self) -> Arch:
        return self._target.arch

    def batches(self) -> Iterator[SampleBatch]:
        """Yield batches of samples. The first sample is taken while the target is still stopped by the connection."""
        control = self._target.control
        flush_ns, handover = round(self._options.flush_s * 1e9), self._options.handover
        try:
            self._tick(control)
            control.start_target()
            yield from self._batch.take_batches()
            flushed = time.monotonic_ns()
            while not self._stopping and not control.ended:
                alive_ns = flushed + max(flush_ns, _SIGN_OF_LIFE_NS)
                if self._wait(control, min(alive_ns, handover.next_ns)):
                    self._tick(control)
                now = time.monotonic_ns()
                if now - flushed >= flush_ns or self._batch.full or now >= handover.next_ns:
                    flushed = now
                    yield from split_at_flushes(handover, self._batch.take_batches(), now)
        except (ConnectionLost, RemoteError) as error:
            if not self._ticks:
                raise
            self._stopping = True
            self._notes["lost"] = said("stub_lost_early", why=f"{error.message} {error.hint}".strip())
            self._diagnostics.count("stub_connection_ended")
        yield from split_at_flushes(handover, self._batch.take_batches(), handover.ended_ns or time.monotonic_ns())

    def _wait(self, control: Control, alive_ns: int) -> bool:
        """Wait until the next sampling time. Return False if an empty batch is due first, or sampling stops."""
        if not control.paced:
            control.run_until(0, self._is_stopping)
            return not (self._stopping or control.ended)
        due = self._clock.next_due(time.monotonic_ns()) if self._due_ns is None else self._due_ns
        self._due_ns = due
        control.run_until(min(due, alive_ns), self._is_stopping)
        if self._stopping or control.ended or time.monotonic_ns() < due:
            return False
        self._due_ns = None
        return True

    def _is_stopping(self) -> bool:
        return self._stopping

    def _tick(self, control: Control) -> None:
        """Take one sample of each thread of the GDB stub's target."""
        before = control.pauses.snapshot().total_ns
        with contextlib.closing(control.stopped_threads(self._list)) as still:
            for thread_id in still:
                self._sample(thread_id)
                if self._batch.full:
                    break
        self._ticks += 1
        self._ticking_ns = time.monotonic_ns() - self._clock.start_ns
        self._clock.note_pause(control.pauses.snapshot().total_ns - before)

    def _list(self) -> list[ThreadId]:
        """Return the threads of the GDB stub's target that are stopped for this sample."""
        self._threads.refresh()
        self._spaces.refresh_space()
        threads = list(self._threads.all.values())
        if self._target.one_stops:
            return [thread.id for thread in self._standing(threads)]
        if self._threads.describe_states():
            if not self._options.idle:
                threads = [t for t in threads if t.is_busy or not t.state]
        elif self._timed and not self._options.idle and not self._ticks:
            self._notes["states"] = said("stub_states_unknown")
        return [thread.id for thread in threads]

    def _standing(self, threads: list[RemoteThread]) -> list[RemoteThread]:
        """Return only the one thread that is stopped: with qemu-user's stub the others run on while it sends their
        registers.
        """
        control = self._target.control
        stepped = control.stepped if isinstance(control, Stepping) else None
        standing = stepped or self._target.first
        if standing is None:
            return threads
        if len(threads) > 1:
            self._notes.setdefault("one thread", said("stub_one_thread", others=len(threads) - 1))
        return [thread for thread in threads if thread.id.tid == standing.tid]

    def _sample(self, thread_id: ThreadId) -> None:
        target = self._target
        thread = self._threads.all.get(thread_id.text)
        packet = target.stub.read_registers(thread_id) if thread is not None else None
        if thread is None or packet is None:
            self._threads.note_ended(thread_id)
            self._diagnostics.count("thread_ended")
            return
        at_ns = time.monotonic_ns()
        values = target.registers.read_values(packet, target.stub.read_register)
        known = self._spaces.current
        around = known.mapping_at(values[target.arch.sp]) if known is not None else None
        base, size = thread.reach.choose_span(values[target.arch.sp], around.end if around is not None else 0)
        stack = target.memory.read_current(base, size)
        thread.reach.note_readable(base, len(stack), size)
        pieces = []
        if thread.other[1]:
            pieces.append(Piece(thread.other[0], target.memory.read_current(*thread.other)))
        space = self._spaces.find_space(values[target.arch.pc])
        self._batch.memory.append_copy(stack)
        made = Lane(target.arch, SampleKind.STOPPED, at_ns, target.pid, thread_id.tid, space, self._clock.weight)
        lane = self._batch.add_sample(made, base, len(stack))
        self._batch.set_registers(lane, values)
        if pieces:
            self._batch.add_pieces(lane, pieces)
        if not thread.has_stored_name or thread.name != self._infos[thread_id.tid].name:
            thread.has_stored_name = True
            self._infos[thread_id.tid] = ThreadInfo(self.pid, thread_id.tid, thread.name or self.name, self.name)

    def learn(self, feedback: Feedback) -> None:
        batch = feedback.batch
        by_tid: dict[int, RemoteThread] = {thread.id.tid: thread for thread in self._threads.all.values()}
        rows = zip(
            batch.tid.tolist(),
            batch.stack.base.tolist(),
            feedback.top.tolist(),
            feedback.missing.tolist(),
            strict=True,
        )
        for tid, base, top, missing in rows:
            thread = by_tid.get(tid)
            if thread is None:
                continue
            if missing and not base <= missing <= base + self._options.stack_size:
                start, size = thread.other
                grown = 2 * size if start <= missing <= start + 2 * size else _OTHER_SIZE
                thread.other = (start if grown > _OTHER_SIZE else missing & -8, min(grown, self._options.stack_size))
            else:
                thread.reach.learn(base, top, missing)
                if not missing and thread.other[1] and not batch.stack.pieces:
                    thread.other = (0, 0)

    def threads(self) -> list[ThreadInfo]:
        return [self._infos[tid] for tid in sorted(self._infos)]

    def states(self) -> dict[int, str]:
        """Return the state of each thread of the GDB stub's target in words, by tid."""
        words = {"R": "running", "S": "sleeping", "D": "disk sleep"}
        threads = list(self._threads.all.values())
        if self._target.one_stops:
            threads = self._standing(threads)
        return {t.id.tid: words.get(t.state, "halted") for t in threads}

    def retire(self) -> None:
        """Ignore the call: a stub's threads stay listed, because only their names are kept."""

    def stats(self) -> CollectorStats:
        control = self._target.control
        return CollectorStats(
            ticks=self._ticks,
            ticking_ns=self._ticking_ns,
            pauses=control.pauses.snapshot(),
            skipped=self._clock.skipped if control.paced else 0,
            notes=(*self._notes.values(), *self._clock.notes),
        )

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        """Let the GDB stub's target run on and close the connection. This never raises."""
        self._stopping = True
        self._target.release_target()
