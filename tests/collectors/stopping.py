"""Ptrace stops of a chosen thread at a chosen time, awake or asleep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder
from pyprof.collectors.linux import procfs
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import Outcome, StoppedThread
from pyprof.collectors.ptrace.thread_stop import Stopper
from pyprof.collectors.thread_start_times import Identities
from pyprof.model.arch import native_arches
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics


@dataclass
class Stopping:
    stopper: Stopper
    builder: BatchBuilder[ArenaMemory]
    target: TracedProcess
    diagnostics: Diagnostics

    def held(self, tid: int) -> StoppedThread:
        return StoppedThread(self.target.threads[tid], self.target.spaces, 1, time.monotonic_ns())

    def stop(self, tid: int) -> Outcome:
        """Stop the thread once, and wait for the stop if it does not come at once."""
        self.builder.take_batches()
        self.stopper.ptrace.block_signals()
        try:
            outcome = self.stopper.stop_thread(self.target.threads[tid], self.target.spaces, 1)
            deadline = time.monotonic() + 10
            while tid in self.stopper.stopped_threads and time.monotonic() < deadline:
                self.stopper.ptrace.wait_sigchld(1_000_000)
                self.stopper.poll_pending()
                outcome = Outcome.TAKEN
        finally:
            self.stopper.ptrace.restore_signals()
        return outcome

    def wait_stop(self, tid: int) -> None:
        """Wait until the thread is in a ptrace stop, without collecting the stop."""
        deadline = time.monotonic() + 10
        while procfs.read_state(self.target.pid, tid) != "tracing stop":
            assert time.monotonic() < deadline
            time.sleep(0.001)


@contextmanager
def stopping(pid: int) -> Iterator[Stopping]:
    diagnostics = Diagnostics()
    arches = native_arches("x86_64")
    builder = BatchBuilder(arches, ArenaMemory(65536), 1)
    target = TracedProcess(pid, CollectOptions(stack_size=65536), Identities(), diagnostics)
    stopper = Stopper(arches, builder, diagnostics, CollectOptions(idle=True))
    target.update(builder)
    try:
        yield Stopping(stopper, builder, target, diagnostics)
    finally:
        stopper.release_all()
        target.close()
