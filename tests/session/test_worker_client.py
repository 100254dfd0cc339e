"""Tests of the deadlines that the sampler sets for its worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pyprof.collectors.linux import procfs
from pyprof.session.process_priority import PREFERRED
from pyprof.session.worker import worker_client as link_module
from pyprof.session.worker.deadline import EndUrgency
from pyprof.session.worker.message_channel import Channel
from pyprof.session.worker.worker_client import Pending, WorkerLink
from pyprof.session.worker.worker_process import Worker

NAMES_S = 0.01
CAP_SYS_NICE = 23


class Idle:
    pid = os.getpid()

    def poll(self) -> int | None:
        return None


class Watched(Worker):
    """A worker whose wait for a processor the test sets. It counts the signals of the deadline."""

    waits_s = 1.0
    hurried = hastened = 0
    waited_for = False
    preferred = 0

    def waited_s(self) -> float:
        return self.waits_s

    def prefer(self) -> None:
        self.preferred += 1

    def signal_deadline(self, is_immediate: bool = False) -> None:
        self.hurried += not is_immediate
        self.hastened += is_immediate

    def wait_for(self) -> None:
        self.waited_for = True


@pytest.fixture
def worker() -> Iterator[Watched]:
    pairs = [Channel.pair() for _ in range(3)]
    yield Watched(Idle(), *(ours for ours, _ in pairs))
    for pair in pairs:
        for end in pair:
            end.close()


def test_time_without_a_processor_does_not_count_until_it_is_too_long(worker: Watched) -> None:
    link = WorkerLink(worker, NAMES_S)
    link.end()
    worker.waits_s += 60
    time.sleep(2 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 0
    link._overtime.lengthen(-link_module.ELAPSED_S)
    link.receive(0)
    assert worker.hurried == 1


def test_starved_worker_is_not_given_up(worker: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[bool] = []
    monkeypatch.setattr(worker, "kill", lambda: killed.append(True))
    link = WorkerLink(worker, NAMES_S)
    link.end()
    link._overtime.lengthen(-2 * link_module.GIVE_UP_S)
    worker.waits_s += 2 * link_module.GIVE_UP_S
    link.receive(0)
    assert not killed
    worker.waits_s -= 1.5 * link_module.GIVE_UP_S
    link.receive(0)
    assert killed


def test_worker_is_hurried_while_the_loop_does_not_end(worker: Watched) -> None:
    link = WorkerLink(worker, 60)
    link.begin_loop()
    link.end()
    link._overtime.lengthen(-link_module._LOOPING * 60 - 1)  # this thread may have waited for a processor
    link.receive(0)
    assert worker.hurried == 1


def test_worker_that_is_waited_for_later_has_its_time_from_then_on(worker: Watched) -> None:
    """End the recording and request the profile later, as a program may."""
    link = WorkerLink(worker, 60)
    link.end()
    link.receive(0)
    link._overtime.lengthen(-60)
    link._heard_at -= 60
    link.begin_to_wait()
    link.receive(0)
    assert worker.hurried == 0


def test_behind_a_stub_a_worker_that_does_not_get_its_processor_time_is_waited_for(worker: Watched) -> None:
    link = WorkerLink(worker, NAMES_S, patient=True)
    link.end()
    worker.waits_s += 60
    time.sleep(2 * NAMES_S)
    link.receive(0)
    assert worker.waited_for
    assert worker.preferred == 2, "when its end is asked for it has no session of its own yet"
    assert worker.hurried == 0
    worker.waits_s -= 60
    link.receive(0)
    assert worker.hurried == 1


def test_what_the_loop_has_waited_before_it_began_does_not_count(
    worker: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "read_waited_s", lambda pid, tid: 60.0)
    link = WorkerLink(worker, NAMES_S, patient=True)
    link.begin_loop()
    link.end()
    link.loop_ended()
    time.sleep(2 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 1


def test_what_the_loops_thread_waits_after_it_ended_does_not_count(
    worker: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_s = [0.0]
    monkeypatch.setattr(procfs, "read_waited_s", lambda pid, tid: loop_s[0])
    link = WorkerLink(worker, NAMES_S, patient=True)
    link.begin_loop()
    link.end()
    link.loop_ended()
    loop_s[0] = 60.0
    time.sleep(2 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 1


def test_worker_has_time_after_a_loop_behind_a_stub_that_ended_late(worker: Watched) -> None:
    link = WorkerLink(worker, 50 * NAMES_S, patient=True)
    link.begin_loop()
    link.end()
    time.sleep(60 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 0, "behind a slow stub the loop ends late"
    link.loop_ended()
    link.receive(0)
    assert worker.hurried == 0
    time.sleep(50 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 1


def test_but_not_for_ever(worker: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    link = WorkerLink(worker, NAMES_S, patient=True)
    link.end()
    worker.waits_s += 60
    time.sleep(2 * NAMES_S)
    monkeypatch.setattr(link_module, "ELAPSED_S", 0.0)
    link.receive(0)
    assert worker.hurried == 1


def test_worker_whose_targets_ended_by_themselves_has_longer(worker: Watched) -> None:
    link = WorkerLink(worker, NAMES_S)
    link.end(EndUrgency.PATIENT)
    worker.waits_s += 60
    time.sleep(NAMES_S * link_module.BY_ITSELF)
    link.receive(0)
    assert worker.hurried == 0
    assert not worker.preferred
    worker.waits_s -= 60
    link.receive(0)
    assert worker.hurried == 1


def test_until_somebody_waits_for_it(worker: Watched) -> None:
    link = WorkerLink(worker, NAMES_S)
    link.end(EndUrgency.PATIENT)
    link.end()
    link.end(EndUrgency.PATIENT)
    time.sleep(2 * NAMES_S)
    link.receive(0)
    assert worker.hurried == 1


def test_waiting_for_a_processor_is_told_from_sleeping() -> None:
    """Run two loops and a sleeper on one processor."""
    code = "import os, time; os.sched_setaffinity(0, [{cpu}]); print(flush=True)\n{rest}"
    cpu = min(os.sched_getaffinity(0))
    rests = ["while True: pass"] * 2 + ["time.sleep(600)"]
    programs = [
        subprocess.Popen([sys.executable, "-c", code.format(cpu=cpu, rest=rest)], stdout=subprocess.PIPE)
        for rest in rests
    ]
    for program in programs:
        assert program.stdout is not None
        program.stdout.readline()
    sleeper = programs[-1].pid
    slept_s = procfs.read_waited_s(sleeper, sleeper)
    while any(procfs.read_waited_s(each.pid, each.pid) < slept_s + 0.1 for each in programs[:2]):
        time.sleep(0.01)
    assert procfs.read_waited_s(sleeper, sleeper) < slept_s + 0.1
    for program in programs:
        program.kill()
        program.communicate()


def test_worker_whose_answers_are_wanted_at_once_is_hurried_until_it_has_answered(worker: Watched) -> None:
    link = WorkerLink(worker, 60)
    link.end(EndUrgency.IMMEDIATE)
    assert (worker.hastened, worker.hurried) == (1, 0)
    link.receive(0)
    assert (worker.hastened, worker.hurried) == (1, 1)


def test_worker_that_is_waited_for_comes_before_others_where_that_is_allowed() -> None:
    pairs = [Channel.pair() for _ in range(3)]
    rights = int(procfs.read_thread_status(os.getpid())["CapEff"], 16)
    with subprocess.Popen(["sleep", "600"]) as child:
        before = os.getpriority(os.PRIO_PROCESS, child.pid)
        Worker(child, *(ours for ours, _ in pairs)).prefer()
        after = os.getpriority(os.PRIO_PROCESS, child.pid)
        child.kill()
    assert after == (PREFERRED if rights >> CAP_SYS_NICE & 1 else before)
    for pair in pairs:
        for end in pair:
            end.close()


def test_request_may_be_sent_while_others_fail_because_the_worker_has_ended(worker: Watched) -> None:
    link, failed = WorkerLink(worker), list[int]()
    link._killed = "killed"

    class Sending(Pending):
        def fail(self, error: BaseException) -> None:
            failed.append(len(link._asked))
            link._asked[100 + len(link._asked)] = Pending(link.receive)  # as another thread does

    link._asked = {number: Sending(link.receive) for number in (1, 2)}
    link._died()
    assert failed == [2, 3]
