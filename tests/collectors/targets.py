"""Helpers that start a target, sample it and unpack the samples."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.linux import procfs
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

MAX_S = 100.0


@dataclass
class Program:
    process: subprocess.Popen[str]
    ready: list[str]

    @property
    def ended(self) -> bool:
        """Return True if the process has ended, without wait(2), which would also collect the sampler's stops."""
        return procfs.read_state(self.pid, self.pid) in ("gone", "zombie")

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self) -> str:
        """Close the program's standard input, wait for its end, and return its output since "ready"."""
        out, _ = self.process.communicate(timeout=MAX_S)
        assert self.process.returncode == 0, (self.process.returncode, out)
        return out


def start(command: list[str], wait_ready: bool = True) -> Program:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    words: list[str] = []
    if wait_ready:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"], words
    return Program(process, words[1:])


def wait_asleep(*pids: int) -> None:
    """Wait until no thread of these processes runs."""
    deadline = time.monotonic() + MAX_S
    before: list[bytes] = []
    while True:
        threads = [(pid, tid) for pid in pids for tid in procfs.list_tasks(pid)]
        now = [Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes() for pid, tid in threads]
        if now == before and {procfs.read_state(pid, tid) for pid, tid in threads} == {"sleeping"}:
            return
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.05)


@dataclass
class Lane:
    """One sample of a batch."""

    kind: SampleKind
    tid: int
    pid: int
    time_ns: int
    regs: dict[str, int]
    base: int
    stack: bytes
    pieces: dict[int, bytes]
    space: int
    weight: int
    batch: SampleBatch

    def word(self, avma: int) -> int | None:
        """Return the word at this address from the stack copy or another copied range."""
        for base, data in ((self.base, self.stack), *self.pieces.items()):
            if base <= avma and avma + 8 <= base + len(data):
                return int.from_bytes(data[avma - base : avma - base + 8], "little")
        return None


@dataclass
class Recording:
    lanes: list[Lane] = field(default_factory=list)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    stats: CollectorStats | None = None
    threads: list[str] = field(default_factory=list)

    def of(self, kind: SampleKind) -> list[Lane]:
        return [lane for lane in self.lanes if lane.kind == kind]


def lanes_of(batch: SampleBatch) -> Iterator[Lane]:
    slab = batch.stack
    for i in range(len(batch)):
        offset, size = int(slab.offset[i]), int(slab.size[i])
        yield Lane(
            SampleKind(int(batch.kind[i])),
            int(batch.tid[i]),
            int(batch.pid[i]),
            int(batch.time_ns[i]),
            dict(zip(batch.arch.registers, batch.regs[i].tolist(), strict=True)),
            int(slab.base[i]),
            slab.data[offset : offset + size].tobytes(),
            {piece.avma: bytes(piece.data) for piece in slab.pieces.get(i, ())},
            int(batch.space[i]),
            int(batch.weight[i]),
            batch,
        )


Enough = Callable[[Recording], bool]


@contextmanager
def collecting(pid: int, diagnostics: Diagnostics, **options: object) -> Iterator[PtraceCollector]:
    collector = PtraceCollector(pid, CollectOptions(**options), diagnostics)  # type: ignore[arg-type]
    try:
        yield collector
    finally:
        collector.close()


def record(
    pid: int,
    enough: Enough,
    learn: Callable[[SampleBatch], Feedback] | None = None,
    keep: bool = True,
    **options: object,
) -> Recording:
    """Sample until enough(recording) returns True or the target ends.

    Args:
        pid: Process id of the target.
        enough: The condition.
        learn: A function that returns the feedback of a batch, in place of an unwinder.
        keep: Whether to keep the samples.
        options: Options of the collector.
    """
    recording = Recording()
    deadline = time.monotonic() + 2 * MAX_S  # only if it never has enough
    options.setdefault("flush_s", 0.02)
    with collecting(pid, recording.diagnostics, **options) as collector:
        for batch in collector.batches():
            recording.lanes += lanes_of(batch) if keep else ()
            recording.stats = collector.stats()
            if learn is not None and len(batch):
                collector.learn(learn(batch))
            if enough(recording) or time.monotonic() > deadline:
                collector.stop()
        recording.threads = [thread.name for thread in collector.threads()]
        recording.stats = collector.stats()
    return recording


def go_then_wait(target: Program) -> Enough:
    """Return a condition that lets the target begin once it is sampled and that holds when the target has ended."""

    def enough(_: Recording) -> bool:
        stdin = target.process.stdin
        assert stdin is not None
        if not begun:
            begun.append(stdin.write("x"))
            stdin.flush()
        return target.ended

    begun: list[int] = []
    return enough


def feedback(batch: SampleBatch, top: int = 0, missing: int = 0, stop: bool = False) -> Feedback:
    """Return the same feedback for all samples of a batch."""
    n = len(batch)
    return Feedback(batch, np.full(n, top, np.uint64), np.full(n, missing, np.uint64), np.full(n, stop))


def samples(count: int) -> Enough:
    return lambda recording: len(recording.lanes) >= count


def rounds(count: int) -> Enough:
    """Return a condition that holds after a number of sampling times."""
    return lambda recording: recording.stats is not None and recording.stats.ticks >= count


def stops(count: int) -> Enough:
    return lambda recording: recording.stats is not None and len(recording.stats.pauses) >= count
