"""Niceness counts within a session only: a worker that somebody waits for is one of its own, before others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyprof.session.worker import share
from pyprof.session.worker.process import Worker, forked, spawned


@pytest.fixture(params=[forked, lambda confined: spawned(confined)], ids=["forked", "spawned"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    found = request.param(True)
    found.wait_until_ready()
    yield found
    found.close(patience_s=0)


def until(so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def of_session(pid: int) -> str:
    path = Path(f"/proc/{pid}/autogroup")
    return path.read_text().rpartition("nice ")[2].strip() if path.exists() else ""


def test_worker_that_is_waited_for_is_a_session_of_its_own_and_comes_first(worker: Worker) -> None:
    """Confined, too."""
    niceness = os.getpriority(os.PRIO_PROCESS, worker.pid)
    worker.wait_for()
    until(lambda: os.getsid(worker.pid) == worker.pid)
    assert of_session(worker.pid) in ("", "0", str(share.NICENESS))
    worker.prefer()
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == share.PREFERRED
        assert of_session(worker.pid) in ("", str(share.PREFERRED))
    else:
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == niceness


def test_who_works_for_a_worker_has_its_share(worker: Worker) -> None:
    """Its keeper, which writes what was recorded."""
    worker.wait_for()
    until(lambda: os.getsid(worker.pid) == worker.pid)
    worker.prefer()
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        share.as_much_as(worker.pid)
        share.as_much_as(worker.pid)
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        os.write(sink, f"{os.getsid(0) == os.getpid()} {niceness} {of_session(os.getpid())}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    leads, own, session = os.read(source, 99).decode().split(" ")
    os.close(source)
    os.close(sink)
    assert leads == "True"
    assert int(own) == os.getpriority(os.PRIO_PROCESS, worker.pid)
    if os.geteuid() == 0:
        assert session in ("", str(share.PREFERRED))


def test_session_of_others_is_left_as_it_is() -> None:
    """As long as a worker has not begun one of its own: that of whoever started us would come first, too."""
    before = of_session(os.getpid())
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    try:
        assert not share.session_takes_more(pid)
        assert of_session(os.getpid()) == before
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert share.session_takes_more(pid), "it is gone: there is nothing more to do"
