"""Start a target, sample it, and look at what came."""

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
from pyprof.diagnostics import Diagnostics
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.options import CollectOptions

LONGEST_S = 30.0


@dataclass
class Program:
    process: subprocess.Popen[str]
    ready: list[str]

    @property
    def ended(self) -> bool:
        """Has it ended? Looks without collecting: wait(2) would collect the sampler's stops, too."""
        return procfs.state(self.pid, self.pid) in ("gone", "zombie")

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self) -> str:
        """Close its standard input and wait; what it printed since ready."""
        out, _ = self.process.communicate(timeout=LONGEST_S)
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
    """Until no thread of some processes has run for a while."""
    deadline = time.monotonic() + LONGEST_S
    before: list[bytes] = []
    while True:
        threads = [(pid, tid) for pid in pids for tid in procfs.tasks(pid)]
        now = [Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes() for pid, tid in threads]
        if now == before and {procfs.state(pid, tid) for pid, tid in threads} == {"sleeping"}:
            return
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.05)


@dataclass
class Lane:
    """One sample, taken out of its batch."""

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
        """The word that stood at avma, from the stack copy or a piece."""
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
            {piece.avma: piece.data for piece in slab.pieces.get(i, ())},
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
    """Sample until enough(recording) or the target ends. learn: what a walk would give back."""
    recording = Recording()
    deadline = time.monotonic() + LONGEST_S
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
    """Let the target begin once it is sampled; enough when it has ended."""

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
    """The same answer for all lanes."""
    n = len(batch)
    return Feedback(batch, np.full(n, top, np.uint64), np.full(n, missing, np.uint64), np.full(n, stop))


def samples(count: int) -> Enough:
    return lambda recording: len(recording.lanes) >= count


def stops(count: int) -> Enough:
    return lambda recording: recording.stats is not None and len(recording.stats.pauses) >= count
