"""Tests of C++ exceptions, signal handlers, libraries and threads of other architectures, with each unwind source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyprof.collectors.base import Feedback
from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector
from pyprof.options import CollectOptions, RemoteOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import Session
from pyprof.session.thread_dump import DumpCompletion
from tests.remote.stubs import Relay, qemu_user, relay
from tests.remote.zoo import MACHINES, PLACES, Stand, binaries, place_of
from tests.support import pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def stacks(address: str, program: Path, sources: str) -> list[str]:
    """Return the function names of each thread's stack from root to leaf, as `pyprof dump --gdb` finds them."""
    diagnostics = Diagnostics()
    remote = RemoteOptions(address, str(program))
    collector = GdbRemoteCollector(remote, CollectOptions(rate_hz=500, idle=True, flush_s=0), diagnostics)
    completion = DumpCompletion(lambda: collector.states().keys(), most_s=60)

    def learn(feedback: Feedback) -> None:
        completion.note_feedback(feedback)
        collector.learn(feedback)

    state: Any = SimpleNamespace(learn=learn, threads=collector.threads, stats=collector.stats)
    session = Session(state, UnwindOptions(tuple(sources.split(","))), diagnostics)
    try:
        for batch in collector.batches():
            completion.note_batch(batch)
            session.recorder.add_batch(batch)
            if completion.is_complete():
                collector.stop()
    finally:
        collector.close()
    profile = session.profile(session.recorder.cut(), "", 1, mode="wall")
    last = dict(zip(profile.thread.tolist(), profile.stack.tolist(), strict=True))
    return [";".join(frame.title for frame in profile.path(node)) for node in last.values()]


@contextmanager
def standing(machine: str, program: Path, stand: Stand) -> Iterator[Relay]:
    """Run the program to the place where it is dumped."""
    with qemu_user(MACHINES[machine].emulator, program, *stand.arguments) as address, relay(address) as stub:
        for name in (*stand.after, stand.at):
            stub.run_to(place_of(machine, program, name), MACHINES[machine].entry)
        yield stub


# the kernel of each architecture has its own signal frames; test_every_instruction.py has each table of each one
STANDS = sorted({("handled", machine) for machine in MACHINES} | set(pairs(list(PLACES), list(MACHINES))))


@pytest.mark.parametrize(("place", "machine"), STANDS)
def test_stack_is_what_the_source_says_by_each_table_alone_and_by_all(place: str, machine: str) -> None:
    stand = PLACES[place]
    wrong = {}
    for program, choices in binaries(machine, stand.source, stand.static).items():
        with standing(machine, program, stand) as stub:
            for sources in choices:
                found = stacks(stub.address, program, sources)
                if len(found) != 1 or not re.fullmatch(stand.pattern(machine, sources), found[0]):
                    wrong[sources] = found
    assert not wrong
