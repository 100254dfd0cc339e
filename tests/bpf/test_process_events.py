"""Tests that the reader of the ring buffer is woken for process events of recorded processes only."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets
from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
from pyprof.collectors.perf.kernel_collector import KernelCollector
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.options import CollectOptions
from tests.live.support import recording as native

pytestmark = pytest.mark.system

PROGRAM = """import mmap, os, sys, time
def run():
    until = time.process_time() + 0.02
    while time.process_time() < until: pass
print("ready", flush=True)
for word in sys.stdin:
    run()
    if word == "code\\n": mapped = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    if word == "data\\n": more = mmap.mmap(-1, 4096)
    if word == "fork\\n" and not os.fork(): os._exit(0)
    if word == "exec\\n": os.execv("/bin/true", ["true"])
    run()
    print(word, end="", flush=True)
"""


def test_signs_of_life_are_few_where_nobody_watches() -> None:
    collector: Any = KernelCollector.__new__(KernelCollector)
    collector._options = options = CollectOptions(flush_s=0.5, handover=FlushProtocol())
    collector.samples, collector.records = BpfSamples, SimpleNamespace(handover=options.handover)
    assert collector._silent_ns() == 2_000_000_000
    options.handover.flush_every(1_000_000_000)
    assert collector._silent_ns() == 500_000_000


class Reader:
    """A reader of the ring buffer that process events wake."""

    def __init__(self, sampler: BpfSampler) -> None:
        self.sampler = sampler
        self._poll = select.epoll()
        self._poll.register(sampler.ring.fd, select.EPOLLIN | select.EPOLLET)

    def woken(self) -> bool:
        """Read the ring, and return True if the reader has been woken since the last call."""
        found = bool(self._poll.poll(0))
        self.sampler.ring.release_records(self.sampler.ring.take_records()[1])
        return found


@contextlib.contextmanager
def watched(target: int, rate_hz: float = 500, follow: bool = False, everything: bool = False) -> Iterator[Reader]:
    watched = KernelTargets(rate_hz, follow=follow, everything=everything)
    sampler = BpfSampler(watched, 16 << 20, list_online_cpus())
    try:
        sampler.add_process(target)
        yield Reader(sampler)
    finally:
        sampler.close()


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    with native.running(sys.executable, "-c", PROGRAM, stdin=subprocess.PIPE) as process:
        yield process


def tell(process: subprocess.Popen[str], word: str) -> None:
    """Send a command to the process, and wait until it has executed it."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(word + "\n")
    process.stdin.flush()
    process.stdout.readline()


def test_new_code_wakes_at_the_next_sample_and_nothing_else_does(target: subprocess.Popen[str]) -> None:
    with watched(target.pid) as reader:
        tell(target, "run")
        assert reader.woken(), "it was not known"
        for word, expected in (("run", False), ("data", False), ("code", True), ("run", False), ("fork", False)):
            tell(target, word)
            assert reader.woken() == expected, word


@pytest.mark.parametrize("everything", [False, True])
def test_births_and_other_programs_wake_where_children_are_recorded(
    everything: bool, target: subprocess.Popen[str]
) -> None:
    with watched(target.pid, rate_hz=0, follow=True, everything=everything) as reader:  # only events wake the reader
        tell(target, "run")
        woken = reader.woken()
        assert everything or not woken, "births of others are news only where all processes are recorded"
        for word in ("fork", "exec"):
            tell(target, word)
            assert reader.woken(), word


def test_programs_of_others_wake_nobody(target: subprocess.Popen[str]) -> None:
    with watched(target.pid, follow=True) as reader:
        tell(target, "run")
        reader.woken()
        for _ in range(20):
            subprocess.run(["true"], check=True)
        tell(target, "run")
        assert not reader.woken()
