"""One ptrace stop of one thread: SEIZE, INTERRUPT, read registers and stack, DETACH.

The caller must block all signals and switch off the garbage collector (StopGuard), so that nothing else of the profiler
runs between the stop and the DETACH. In all cases a thread that was seized is in `stopped_threads` until it is detached
or has ended.

Measured (kernel 6.18, 2 cores): it is better to sleep at once until SIGCHLD than to poll first. A target that shares
the sampler's core is stopped only when the sampler leaves it (two spinning threads: pause p50 34 us against 2-6 ms).
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pyprof.collectors.base import PauseLog
from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder, Lane
from pyprof.collectors.linux import libc
from pyprof.collectors.linux.interrupted_syscalls import INTERRUPTED, BlockedCall, InterruptedCalls, ShortCall
from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.collectors.linux.procfs import ENDED_STATES, is_own_child, read_stop_state, read_thread_status
from pyprof.collectors.linux.stopped_registers import Regset
from pyprof.collectors.native.sampling_loop_bindings import SampleRow, StopEnding, registers_of
from pyprof.collectors.ptrace.sampled_thread import MAX_STOP_WAIT_NS, Outcome, StoppedThread, Thread, find_no_thread
from pyprof.collectors.ptrace.stack_copy import StackCopy
from pyprof.collectors.targets.address_spaces import MapsEvidence, SpaceTracker, TargetImage
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.marker_frames import Blocked
from pyprof.model.sample_batch import SampleKind
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics


class StopGuard:
    """A guard that blocks signals and garbage collection in the sampling thread while it stops other threads."""

    def __init__(self, ptrace: PtraceCalls) -> None:
        self._ptrace = ptrace
        self._entered = False
        self._gc = True
        self._old_sigchld: object = None

    def enable_sigchld(self) -> None:
        """Restore the default action of SIGCHLD if it is ignored, because the kernel may then not report stops."""
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if ignored and threading.current_thread() is threading.main_thread():
            self._old_sigchld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def enter(self) -> None:
        """Block signals and garbage collection, because threads will be stopped. The caller does this inside
        the try block whose finally part calls leave().
        """
        self._gc = gc.isenabled()
        self._entered = True
        self._ptrace.block_signals()
        gc.disable()

    def leave(self) -> None:
        """Allow signals and garbage collection again after threads were stopped.

        A signal handler may raise an exception as soon as signals are allowed. It may do so earlier only if another
        thread of the process received the signal. Then close() does the rest.
        """
        if self._entered:
            if self._gc:
                gc.enable()
            self._ptrace.restore_signals()
            self._entered = False

    def close(self) -> None:
        """Restore signals, garbage collection and the action of SIGCHLD. The thread that called enter() must
        call this.
        """
        self.leave()
        if self._old_sigchld is not None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            self._old_sigchld = None


_COLD_NS = 3_000_000
"""Time in ns since the last stop of a thread, after which the next stop is rehearsed without stopping the
thread.

The rehearsal brings code and page tables back into the caches while the target still runs.
"""
_STOP_TIMEOUT_NS = 100_000_000
_SLICE_NS = 100_000
FELL_ASLEEP = "thread_blocked_before_stop"


class Stopper:
    """Stops of single threads by ptrace, and what each stop reads.

    Attributes:
        stopped_threads: Threads that are seized by ptrace now, by tid.
        copy: Copy of the stack of the thread that was stopped last.
        pauses: Histogram of the duration of each stop, measured from the last moment at which the thread
            surely ran.
        stopped_ns: Sum of the durations of all stops in nanoseconds.
        transferring: Number of threads with a system call that a stop has cut short.
        ended_counts: Number of sampling times at which a thread of a process ran but ended before it stopped,
            by pid. The caller that reads it clears it.
        find_unclaimed: Function that returns a thread which the compiled sampling loop has stopped and which
            is not in `stopped_threads`, or None.
        last_stop_ns: Monotonic time at which the last stop ended.
    """

    def __init__(
        self,
        arches: Sequence[Arch],
        builder: BatchBuilder[ArenaMemory],
        diagnostics: Diagnostics,
        options: CollectOptions,
    ) -> None:
        """Create an object that stops threads. `arches` are the architectures of code that this machine can run."""
        self.ptrace = libc.PtraceCalls()
        self.stopped_threads: dict[int, StoppedThread] = {}
        self.transferring = 0
        self.ended_counts: Counter[int] = Counter()
        self.pauses = PauseLog()
        self.stopped_ns = 0
        self._calls = InterruptedCalls(self.ptrace, diagnostics)
        self._regsets = {arch.name: Regset(arch, self.ptrace) for arch in arches}
        self._builder = builder
        self._diagnostics = diagnostics
        self._idle = options.idle
        self.copy = StackCopy(self.ptrace, builder, diagnostics, options.stack_size)
        self.find_unclaimed: Callable[[], StoppedThread | None] = find_no_thread
        self.last_stop_ns = 0

    def stop_thread(
        self, thread: Thread, spaces: SpaceTracker, weight: int, asleep: BlockedCall | None = None
    ) -> Outcome:
        """Stop and sample a thread. The batch has a sample of it if the outcome is TAKEN.

        Args:
            thread: The thread.
            spaces: Address spaces of its process.
            weight: Number of sampling times that the sample stands for.
            asleep: The system call in which the thread sleeps, None if it runs.
        """
        self.ptrace.raise_priority()
        try:
            return self._stop(thread, spaces, weight, asleep)
        finally:
            self.restore_priority()

    def sample_unknown(self, tid: int, known: Callable[[], tuple[Thread, SpaceTracker] | None], weight: int) -> Outcome:
        """Stop and sample a thread that was not sampled before.

        It is stopped while known() reads its /proc files, because reading takes longer than many a process
        lives. The time counts as part of its pause.

        Args:
            tid: The thread.
            known: Function that reads and returns the thread and its address spaces, or None if they may not
                be read.
            weight: Number of sampling times that the sample stands for.
        """
        since_ns, failed = time.monotonic_ns(), libc.seize(tid)
        if failed:
            return self._refused(tid, -failed)
        libc.interrupt(tid)
        found = None
        try:
            found = known()
        finally:
            if found is None:
                self._abandon(tid)
        if found is None:
            return Outcome.UNUSABLE
        held = self.stopped_threads[tid] = StoppedThread(*found, weight, since_ns, since_ns)
        return self._await(held)

    def _abandon(self, tid: int) -> None:
        """Detach from a seized thread that could not be sampled. If it does not stop in time, the kernel
        detaches it when the profiler ends.
        """
        deadline = time.monotonic_ns() + _STOP_TIMEOUT_NS
        while time.monotonic_ns() < deadline:
            status = self.ptrace.poll_stop(tid)
            if status > 0:
                size = self.ptrace.read_registers(tid)
                regset = next((each for each in self._regsets.values() if each.arch.kernel.regset_size == size), None)
                if regset is not None:
                    self._calls.prepare_release(tid, status, regset)
                libc.detach(tid, status & 0x7F if status >> 8 == 0 else 0)
                return
            if status < 0 or read_stop_state(tid) in ENDED_STATES:
                libc.reap(tid)
                return
            self.ptrace.wait_sigchld(_SLICE_NS)

    def restore_priority(self) -> None:
        """Return the sampler to normal priority, unless a thread has been interrupted and not stopped yet. It
        would have to wait for the sampler.
        """
        if not self.stopped_threads:
            self.ptrace.restore_priority()

    def _stop(self, thread: Thread, spaces: SpaceTracker, weight: int, asleep: BlockedCall | None) -> Outcome:
        tid = thread.tid
        if thread.last_sp and time.monotonic_ns() - self.last_stop_ns > _COLD_NS:
            self._rehearse(thread, spaces)
        failed = libc.seize(tid)
        if failed:
            outcome = self._refused(tid, -failed)
            self.ended_counts[thread.pid] += weight * (outcome is Outcome.GONE)
            return outcome
        held = self.stopped_threads[tid] = StoppedThread(thread, spaces, weight, asleep=asleep)
        held.since_ns = held.asked_ns = time.monotonic_ns()
        failed = libc.interrupt(tid)
        return self._lost(tid) if failed else self._await(held)

    def finish_native_stop(self, held: StoppedThread, came: SampleRow) -> Outcome:
        """Finish in Python a stop that the compiled sampling loop began or tried, and return its outcome. The
        thread must be in `stopped_threads`.
        """
        tid = held.thread.tid
        held.since_ns = held.asked_ns = came.since_ns
        if came.ending == StopEnding.HELD:
            return self._finish(held, came.status)
        if came.ending == StopEnding.PENDING:
            return self._await(held)
        if came.ending == StopEnding.LOST:
            return self._lost(tid)
        del self.stopped_threads[tid]
        outcome = self._refused(tid, -came.error)
        self.ended_counts[held.thread.pid] += held.weight * (outcome is Outcome.GONE)
        return outcome

    def fill_native_sample(
        self, held: StoppedThread, space: AddressSpace, arch: Arch, came: SampleRow, lane: int, offset: int
    ) -> None:
        """Fill the reserved row of a sample that the compiled sampling loop has taken from a thread and released.

        Args:
            held: The thread.
            space: Address space in which it ran.
            arch: Architecture of its code.
            came: Row that the compiled sampling loop filled.
            lane: Number of the reserved sample.
            offset: Offset of the stack copy in the builder's memory.
        """
        thread, spaces = held.thread, held.spaces
        held.since_ns = came.since_ns
        self._passed(held, came.resumed_ns)
        kind, started = SampleKind.STOPPED, thread.started
        made = Lane(arch, kind, came.at_ns, thread.pid, thread.tid, space, held.weight, started)
        self._builder.fill_reserved(lane, made, came.base, offset, came.size)
        self._builder.set_regset(lane, registers_of(came, arch.kernel.regset_size // 8))
        sp, pc = (came.registers[arch.kernel.prstatus[column]] for column in (arch.sp, arch.pc))
        thread.last_sp = sp
        if spaces.current is space:
            spaces.note_sample(lane, arch.code_address(pc), sp, spaces.accept_answer())

    def choose_arch(self, image: TargetImage) -> Arch:
        """Return the architecture of a program's executable, such as i386 of a 32-bit program on x86-64.

        The program's stacks are unwound by the registers of that architecture.
        """
        return self._regsets[image.arch.name].arch

    def _passed(self, held: StoppedThread, now_ns: int) -> None:
        """Note that a stopped thread runs again, and add the length of its pause to the statistics."""
        self.last_stop_ns = max(self.last_stop_ns, now_ns)
        self.stopped_ns += now_ns - held.since_ns
        self.pauses.add_pause(now_ns - held.since_ns)

    def _await(self, held: StoppedThread) -> Outcome:
        """Wait until an interrupted thread stops, then sample it. If that takes too long, return
        Outcome.PENDING, so that a later call finishes the stop.
        """
        tid = held.thread.tid
        deadline = time.monotonic_ns() + MAX_STOP_WAIT_NS
        while True:
            woken = self.ptrace.wait_sigchld(min(_SLICE_NS, max(deadline - time.monotonic_ns(), 0)))
            status = self.ptrace.poll_stop(tid)
            if status > 0:
                outcome = self._finish(held, status)
                self._finish_others(None, self.last_stop_ns)
                return outcome
            if status < 0 or (woken and read_stop_state(tid) in ENDED_STATES):
                return self._lost(tid)
            now = time.monotonic_ns()
            self._finish_others(held, now if woken else 0)
            held.since_ns = now
            if now >= deadline:
                return self._lost(tid) if read_stop_state(tid) in ENDED_STATES else Outcome.PENDING

    def _rehearse(self, thread: Thread, spaces: SpaceTracker) -> None:
        """Make the system calls of a stop for a thread that is not traced, so that they are fast in the real
        stop. The kernel answers each with ESRCH and does nothing.

        waitid(2) is left out: for a child of the profiler it would collect the child's status.
        """
        tid, ptrace = thread.tid, self.ptrace
        libc.interrupt(tid)
        if not self.stopped_threads:  # otherwise the signal may report one of those
            ptrace.wait_sigchld(0)
        ptrace.read_registers(tid)
        self.copy.warm_up(thread, spaces, thread.last_sp)
        spaces.warm_up()
        libc.detach(tid)

    def wait_pending(self, wait_ns: int) -> None:
        """Sleep for at most wait_ns until a thread whose stop is late has stopped, then sample and release it."""
        self.ptrace.raise_priority()
        try:
            if self.ptrace.wait_sigchld(wait_ns):
                self._finish_others(None, time.monotonic_ns())
            else:
                self.poll_pending()
        finally:
            self.restore_priority()

    def _finish_others(self, wanted: StoppedThread | None, woken_ns: int) -> None:
        """Sample and release all other threads that have stopped while the sampler waited for `wanted`.

        Args:
            wanted: The thread that the sampler waited for, which the caller handles; None if there is none.
            woken_ns: Time at which a stop has just woken the sampler; 0 if none has.
        """
        if len(self.stopped_threads) <= (wanted is not None):
            return
        for tid, held in list(self.stopped_threads.items()):
            if held is wanted or self._builder.full:
                continue
            now = time.monotonic_ns()
            status = self.ptrace.poll_stop(tid)
            if status > 0:
                if self.ptrace.raises_priority:
                    held.since_ns = max(held.since_ns, woken_ns)
                self._finish(held, status)
            else:
                held.since_ns = now

    def poll_pending(self) -> None:
        """Finish the stops of threads that took longer than the sampler waited.

        A thread that has stopped by now is sampled, or only released if the batch is full. A thread that has
        not stopped is interrupted once more.
        """
        for tid, held in list(self.stopped_threads.items()):
            status = self._status_of(tid)
            if status > 0 and self._builder.full:
                self._let_go(held, status)
            elif status > 0:
                self._finish(held, status)
            elif status < 0:
                self._lost(tid)
            else:
                self._ask_again(held)

    def _ask_again(self, held: StoppedThread) -> None:
        """Repeat PTRACE_INTERRUPT for a thread that does not stop, because an exec discards the request but
        keeps the tracer.
        """
        held.since_ns = time.monotonic_ns()
        late = held.since_ns - held.asked_ns > _STOP_TIMEOUT_NS
        if late:
            self._diagnostics.count("thread_stop_timeout")
        if late or read_stop_state(held.thread.tid) == "R":
            held.asked_ns = held.since_ns
            libc.interrupt(held.thread.tid)

    def release_all(self, timeout_ns: int = 1_000_000_000) -> None:
        """Detach from all traced threads. The kernel detaches a thread that does not stop in time when the profiler
        ends.
        """
        deadline = time.monotonic_ns() + timeout_ns
        left = self.find_unclaimed()
        if left is not None:
            self.stopped_threads[left.thread.tid] = left
        for tid in self.stopped_threads:
            libc.interrupt(tid)
        while self.stopped_threads and time.monotonic_ns() < deadline:
            for tid, held in list(self.stopped_threads.items()):
                status = self._status_of(tid)
                if status > 0:
                    self._let_go(held, status)
                elif status < 0:
                    self._lost(tid)
            if self.stopped_threads:
                self.ptrace.wait_sigchld(1_000_000)
        self.ptrace.restore_priority()

    def _status_of(self, tid: int) -> int:
        """Return the wait status of a traced thread's stop, 0 if there is none, or -ESRCH if the thread has ended.

        Another component may collect the stop: waitpid for a launched command also collects stops of tracees, because
        wait(2) reports them whatever its options.
        """
        status = self.ptrace.poll_stop(tid)
        if status:
            return status
        letter = read_stop_state(tid)
        if letter in ENDED_STATES:
            return -errno.ESRCH
        if letter == "t":
            return self.ptrace.poll_stop(tid) or self.ptrace.stop_reason(tid)
        return 0

    def _finish(self, held: StoppedThread, status: int) -> Outcome:
        """Copy the stack and registers of a stopped thread, release the thread, and only then add the sample."""
        thread, tid = held.thread, held.thread.tid
        regset: Regset | None = None
        call: ShortCall | None = None
        got, evidence = 0, MapsEvidence()
        self.copy.clear()
        at = time.monotonic_ns()
        try:
            got = self.ptrace.read_registers(tid)
            regset = self._regset(held.spaces.image, got)
            if regset is not None:
                thread.arch = regset.arch
                self.copy.copy_stack(thread, held.spaces, regset.sp, regset)
                evidence = held.spaces.collect_evidence(regset.arch.code_address(regset.pc))
                call = self._calls.prepare_release(tid, status, regset)
                if regset.arch.pac_mask and not held.spaces.image.pac_known:
                    held.spaces.image.set_pac_mask(self.ptrace.read_pac_mask(tid))
        finally:
            self._release(tid, status)
            self._passed(held, time.monotonic_ns())
        self._judge(thread, call)
        if got < 0:
            return Outcome.GONE
        if regset is None:
            self._diagnostics.count("thread_of_other_architecture")
            return Outcome.UNUSABLE
        asleep = partial(regset.was_asleep, self._calls.read)
        if regset.arch.kernel.syscall_number < 0 and regset.interrupted and asleep():
            self._diagnostics.count(INTERRUPTED)  # it cannot be undone: see InterruptedCalls
        if not self._idle and asleep():
            self._diagnostics.count(FELL_ASLEEP)
            return Outcome.ASLEEP
        self.restore_priority()
        self._lane(held, at, evidence, regset)
        return Outcome.TAKEN

    def _regset(self, image: TargetImage, size: int) -> Regset | None:
        """Return the registers of a stopped thread, which were just read, or None if no architecture has a
        register set of `size` bytes.

        They are those of the program's architecture, or of another one that the kernel supports: a 64-bit program may
        run 32-bit code, and vice versa.
        """
        own = self._regsets.get(image.arch.name)
        if own is not None and own.arch.kernel.regset_size == size:
            return own
        return next((regset for regset in self._regsets.values() if regset.arch.kernel.regset_size == size), None)

    def _lane(self, held: StoppedThread, at_ns: int, evidence: MapsEvidence, regset: Regset) -> None:
        lane = self.copy.add_lane(SampleKind.STOPPED, held.thread, held.spaces, held.weight, at_ns, evidence)
        self._builder.set_regset(lane, regset.columns)
        if held.asleep is not None:  # also if it took long to stop
            held.thread.stopped = (held.asleep.sp, held.asleep.pc, self._builder.copy_of(lane))
            self._builder.set_kernel_stack(lane, (Blocked(regset.arch.name, "S", held.asleep.number),))
        held.thread.last_sp = regset.sp
        held.spaces.note_sample(lane, regset.arch.code_address(regset.pc), regset.sp, evidence)

    def _let_go(self, held: StoppedThread, status: int) -> None:
        """Release a stopped thread without a sample."""
        tid = held.thread.tid
        call: ShortCall | None = None
        try:
            regset = self._regset(held.spaces.image, self.ptrace.read_registers(tid))
            if regset is not None:
                call = self._calls.prepare_release(tid, status, regset)
        finally:
            self._release(tid, status)
        self._judge(held.thread, call)

    def _judge(self, thread: Thread, call: ShortCall | None) -> None:
        if self._calls.check_release(thread.tid, call) and not thread.transfers:
            thread.transfers = True
            self.transferring += 1

    def _release(self, tid: int, status: int) -> None:
        """Detach from a stopped thread, and deliver the signal that it was about to receive.

        A thread that was killed meanwhile stays in `stopped_threads`, because its exit status must still be
        collected.
        """
        if libc.detach(tid, status & 0x7F if status >> 8 == 0 else 0) == 0:
            self.stopped_threads.pop(tid, None)

    def _refused(self, tid: int, error: int) -> Outcome:
        if error == errno.ESRCH:
            return Outcome.GONE
        try:
            status = read_thread_status(tid)
        except OSError:
            return Outcome.GONE
        if status.get("State", "Z")[:1] in "ZX":
            return Outcome.GONE
        traced = status.get("TracerPid", "0") != "0"
        self._diagnostics.count("thread_held_by_debugger" if traced else "thread_not_traceable")
        return Outcome.REFUSED

    def _lost(self, tid: int) -> Outcome:
        """Collect the exit status of a traced thread that has ended, and return the outcome for it.

        The thread's parent is notified only after that, unless the profiler is its parent.
        """
        if not is_own_child(tid) and libc.reap(tid) is None and os.path.exists(f"/proc/{tid}"):
            return Outcome.GONE  # a leader whose other threads live on stays in held until it can be collected
        held = self.stopped_threads.pop(tid, None)
        if held is not None:
            self.ended_counts[held.thread.pid] += held.weight
        return Outcome.GONE
