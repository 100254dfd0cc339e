"""Tests of children of a target, long-lived and short-lived, found through the proc connector or through /proc."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from pyprof.collectors.linux import child_processes
from pyprof.collectors.linux.child_processes import (
    Connector,
    Poller,
    find_descendants,
    list_children_by_parent,
    open_child_finder,
    parse_event,
)
from pyprof.collectors.ptrace import collector as ptrace
from pyprof.problem_counters import Diagnostics
from tests.collectors.conftest import Start
from tests.collectors.targets import Recording, go_then_wait, record
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

MISSED = "process_ended_early"

TREE = """
import os
for generation in range(2):
    if os.fork():
        break
os.write(1, b"up\\n")
while True: pass
"""


def listening() -> bool:
    finder = open_child_finder(Diagnostics(), lambda pid: True)
    finder.close()
    return isinstance(finder, Connector)


def need_connector() -> None:
    if not listening():
        missing("needs CAP_NET_ADMIN in the first network namespace for the kernel's proc connector")


def tree() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == "up\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    for pid in find_descendants([process.pid]):
        subprocess.run(["kill", "-9", str(pid)], check=False)
    process.kill()
    process.communicate()


@pytest.mark.parametrize("finder", ["connector", "poller"])
def test_existing_children_and_grandchildren_are_sampled(finder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if finder == "poller":
        monkeypatch.setattr(ptrace, "open_child_finder", lambda diagnostics, is_sampled: Poller())
    else:
        need_connector()
    process = tree()
    try:
        recording = record(
            process.pid, lambda r: len({lane.pid for lane in r.lanes}) >= 3, rate_hz=300, subprocesses=True
        )
        family = {process.pid, *find_descendants([process.pid])}
        assert {lane.pid for lane in recording.lanes} == family
        spaces = {lane.pid: lane.space for lane in recording.lanes}
        assert len(set(spaces.values())) == 3
        assert all(lane.batch.spaces[lane.space].pid == lane.pid for lane in recording.lanes)
        assert recording.stats is not None
        assert (child_processes.POLLING_NOTE in recording.stats.notes) == (finder == "poller")
    finally:
        end(process)


def short_lived(program: Start, count: int) -> Recording:
    target = program("c_storm", "fork", str(count))
    recording = record(target.pid, go_then_wait(target), rate_hz=500, subprocesses=True)
    assert target.finish() == f"done {count * (28 * (10_000_000 // 8) & 127)}\n"
    return recording


def test_every_short_lived_child_is_sampled_or_counted_as_missed(program: Start) -> None:
    need_connector()
    recording = short_lived(program, 400)
    sampled = {lane.pid for lane in recording.lanes}
    assert len(sampled) > 20
    assert 340 < len(sampled) - 1 + recording.diagnostics.counts[MISSED] <= 401


def test_short_lived_children_are_found_by_looking_where_the_kernel_does_not_tell(
    program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ptrace, "open_child_finder", lambda diagnostics, is_sampled: Poller())
    for count in (100, 200, 400, 800):  # how many live long enough depends on the other work of the machine
        found = {lane.pid for lane in short_lived(program, count).lanes}
        if len(found) > 3:
            break
    assert len(found) > 3


def test_look_that_waited_for_a_processor_does_not_delay_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def wait(pids: object) -> list[int]:
        looks.append(pids)
        time.sleep(0.05)
        return []

    monkeypatch.setattr(child_processes, "find_descendants", wait)
    poller = Poller()
    poller.find_children([1])
    time.sleep(0.05)
    poller.find_children([1])
    assert len(looks) == 2


def test_without_subprocesses_children_are_left_alone(program: Start) -> None:
    process = tree()
    try:
        recording = record(process.pid, lambda r: len(r.lanes) > 10, rate_hz=300)
        assert {lane.pid for lane in recording.lanes} == {process.pid}
    finally:
        end(process)


def test_children_are_found_by_their_parents_where_the_kernel_has_no_list() -> None:
    process = tree()
    try:
        assert sorted(list_children_by_parent({process.pid})) == sorted(find_descendants([process.pid]))
        assert len(find_descendants([process.pid])) == 2
    finally:
        end(process)


def test_a_refused_connector_falls_back_to_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(socket, "socket", refuse)
    assert isinstance(open_child_finder(Diagnostics(), lambda pid: True), Poller)


def test_short_messages_of_the_connector_are_no_events() -> None:
    assert all(parse_event(bytes(size)) is None for size in range(100))
