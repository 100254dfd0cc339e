"""Tests of the priority of workers. With autogroups niceness counts within a session only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.session import process_priority
from pyprof.session.worker.worker_process import Worker, forked, spawned


@pytest.fixture(params=[forked, lambda confined: spawned(confined)], ids=["forked", "spawned"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    found = request.param(True)
    found.wait_until_ready()
    yield found
    found.close(patience_s=0)


def of_session(pid: int) -> str:
    path = Path(f"/proc/{pid}/autogroup")
    return path.read_text().rpartition("nice ")[2].strip() if path.exists() else ""


def test_worker_that_is_waited_for_is_a_session_of_its_own_and_comes_first(worker: Worker) -> None:
    """Check a worker, also a confined one."""
    niceness = os.getpriority(os.PRIO_PROCESS, worker.pid)
    assert os.getsid(worker.pid) == worker.pid
    worker.lower_priority()
    assert of_session(worker.pid) in ("", str(niceness + process_priority.NICENESS))
    worker.prefer()
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == process_priority.PREFERRED
        assert of_session(worker.pid) in ("", str(process_priority.PREFERRED))
    else:
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == niceness + process_priority.NICENESS


def test_broker_of_a_worker_is_of_its_session_and_has_its_niceness(worker: Worker) -> None:
    worker.prefer()
    (broker,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    assert os.getsid(int(broker)) == worker.pid
    pid = os.fork()
    if not pid:
        process_priority.copy_priority(worker.pid)
        os._exit(os.getpriority(os.PRIO_PROCESS, 0) != os.getpriority(os.PRIO_PROCESS, worker.pid))
    assert os.waitpid(pid, 0)[1] == 0


def test_session_of_others_is_left_as_it_is() -> None:
    before = of_session(os.getpid())
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    try:
        process_priority.raise_priority(pid)
        assert of_session(os.getpid()) == before
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


NICENESSES = """
import os
from pyprof.session import process_priority as priority
found = []
for step in (lambda: None, priority.raise_startup_priority, priority.restore_priority, priority.restore_priority):
    step()
    found.append(os.getpriority(os.PRIO_PROCESS, 0))
print(*found)
"""


@pytest.mark.parametrize("chosen", [0, 5])
def test_start_has_a_higher_priority_unless_the_user_chose_one(chosen: int) -> None:
    command = ["nice", "-n", str(chosen), sys.executable, "-c", NICENESSES]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, at_start, *after = map(int, said.split())
    assert at_start == (process_priority.PREFERRED if before == 0 and os.geteuid() == 0 else before)
    assert after == [before, before]
