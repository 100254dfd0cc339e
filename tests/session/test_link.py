"""When a worker is told that its time is over."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from pyprof.session.worker import link as link_module
from pyprof.session.worker.channel import Channel
from pyprof.session.worker.link import WorkerLink
from pyprof.session.worker.process import Worker

NAMES_S = 0.01


class Idle:
    pid = os.getpid()

    def poll(self) -> int | None:
        return None


class Watched(Worker):
    """How much it has worked is what a test says; it counts how often it is hurried."""

    worked_s = 1.0
    hurried = 0
    waited_for = False

    def processor_time(self) -> float:
        return self.worked_s

    def hurry(self) -> None:
        self.hurried += 1

    def wait_for(self) -> None:
        self.waited_for = True


@pytest.fixture
def worker() -> Iterator[Watched]:
    pairs = [Channel.pair() for _ in range(3)]
    yield Watched(Idle(), *(ours for ours, _ in pairs))
    for pair in pairs:
        for end in pair:
            end.close()


def ended(worker: Watched) -> WorkerLink:
    link = WorkerLink(worker, NAMES_S)
    link.end()
    time.sleep(2 * NAMES_S)
    return link


def test_worker_that_does_not_get_its_processor_time_is_waited_for(worker: Watched) -> None:
    link = ended(worker)
    link.receive(0)
    assert worker.waited_for
    assert worker.hurried == 0
    worker.worked_s += NAMES_S
    link.receive(0)
    assert worker.hurried == 1


def test_but_not_for_ever(worker: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    link = ended(worker)
    monkeypatch.setattr(link_module, "ELAPSED_S", 0.0)
    link.receive(0)
    assert worker.hurried == 1


def test_worker_whose_targets_ended_by_themselves_has_longer(worker: Watched) -> None:
    link = WorkerLink(worker, NAMES_S)
    link.end(requested=False)
    worker.worked_s += NAMES_S * (link_module.BY_ITSELF - 1)
    time.sleep(NAMES_S * (link_module.BY_ITSELF + 1))
    link.receive(0)
    assert worker.hurried == 0
    worker.worked_s += NAMES_S
    link.receive(0)
    assert worker.hurried == 1


def test_until_somebody_waits_for_it(worker: Watched) -> None:
    link = WorkerLink(worker, NAMES_S)
    link.end(requested=False)
    link.end()
    link.end(requested=False)
    worker.worked_s += NAMES_S
    time.sleep(2 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 1


def test_processor_time_of_a_process_grows_while_it_works() -> None:
    pairs = [Channel.pair() for _ in range(3)]
    this = Worker(Idle(), *(ours for ours, _ in pairs))
    before = this.processor_time()
    while time.process_time() < before + 0.01:
        pass
    assert before + 0.01 <= this.processor_time() <= time.process_time()
    for pair in pairs:
        for end in pair:
            end.close()


def test_worker_whose_answers_are_wanted_at_once_is_hurried_until_it_has_answered(worker: Watched) -> None:
    link = WorkerLink(worker, 60)
    link.hasten()
    assert worker.hurried == 1
    link.receive(0)
    assert worker.hurried == 2
