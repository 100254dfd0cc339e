"""A campaign that kills servers with SIGKILL during ingest: no acknowledged window is lost or counted twice.

python -m tests.survival --kills 0 --recordings 0 --servers 100
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from pyprof.fleet.agent.spool import SpoolSegment
from tests.agent.filled import marked, segment
from tests.server.serving import Client, Served, served

SENDERS, MAX_S = 4, 1.5
_PAUSE_S = 0.05
SERVICE = "killed"


@dataclass
class Sent:
    """The sent windows by name.

    Attributes:
        acknowledged: Windows with a response.
        unknown: Windows without a response, which may be stored or not.
    """

    acknowledged: dict[str, SpoolSegment] = field(default_factory=dict)
    unknown: dict[str, SpoolSegment] = field(default_factory=dict)


def kill_servers(folder: Path, kills: int, rng: random.Random, told: Callable[[str], None] = lambda _: None) -> Sent:
    """Kill each server at a random moment while four senders push, and resend windows without a response to the next
    one.

    Raises:
        AssertionError: A window is lost or counts twice.
    """
    sent, names = Sent(), _windows()
    for turn in range(kills):
        with served(folder) as server:
            _check(server, sent)
            _kill_while_sending(server, sent, names, rng.uniform(0, MAX_S))
        told(f"{turn + 1} kills: {len(sent.acknowledged):,} windows acknowledged, {len(sent.unknown)} under way")
    with served(folder) as server:
        _check(server, sent)
    return sent


def _windows() -> Iterator[SpoolSegment]:
    """Yield windows without end, each of another time of the last days."""
    profile = marked()
    end_ns = time.time_ns() // 10**9 * 10**9
    while True:
        end_ns -= 20 * 10**9  # hours end soon, so that a server is also killed during rollups
        yield segment(profile, SERVICE, end_ns)


def _check(server: Served, sent: Sent) -> None:
    """Resend the windows without a response, as an agent does, and assert that the database has each window once."""
    for path, each in list(sent.unknown.items()):
        assert server.push(each).status in (200, 409), path
        sent.acknowledged[path] = sent.unknown.pop(path)
    again = list(sent.acknowledged.values())[-3:]
    assert [server.push(each).status for each in again] == [409] * len(again), "an acknowledged file is gone"
    count = len(sent.acknowledged)
    server.until_indexed(count, service=SERVICE)
    rows = server.question("services", service=SERVICE).json()["services"]
    assert sum(row["amount"] for row in rows) == count * marked().total
    if count:  # compares rollups and raw windows
        assert server.question("functions", service=SERVICE).json()["total"] == count * marked().total


def _kill_while_sending(server: Served, sent: Sent, names: Iterator[SpoolSegment], after_s: float) -> None:
    lock, ended = threading.Lock(), threading.Event()

    def send() -> None:
        client = Client(server.port)
        while not ended.is_set():
            with lock:
                each = next(names)
                sent.unknown[each.name.path] = each
            try:
                status = client.push(each).status
            except (OSError, http.client.HTTPException):
                return  # killed before or during its response
            with lock:
                pushed = sent.unknown.pop(each.name.path)
                if status == HTTPStatus.OK:
                    sent.acknowledged[each.name.path] = pushed
            if status != HTTPStatus.OK:  # beyond the tenant's quota, so nothing may be stored
                assert status == HTTPStatus.TOO_MANY_REQUESTS, status
                time.sleep(_PAUSE_S)

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    time.sleep(after_s)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    ended.set()
    for thread in threads:
        thread.join()
