"""A pyprof server in a separate process, and an HTTP client for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyprof.fleet.agent.spool import SpoolSegment
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from tests.agent.filled import marked, segment

PATIENCE_S = 60


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Answered:
    status: int
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """An HTTP client of the server.

    Attributes:
        port: The server's port.
        token: Token that is sent with each request, if any.
        headers: Headers that are sent with each request.
    """

    port: int
    token: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> Answered:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {**self.headers, **named}.items():
            request.add_header(name, value)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return Answered(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            return Answered(error.code, error.read(), dict(error.headers))

    def push(self, sent: SpoolSegment) -> Answered:
        name = sent.name
        return self.ask(f"/api/v1/segments/{name.day}/{name.folder}/{name.name}", sent.data)

    def question(self, what: str, **words: object) -> Answered:
        """Send a query for all time, unless it is a comparison, which has its spans among the parameters."""
        span = {} if what == "diff" else {"from": 0, "to": int(time.time()) + 3600}
        query = {**span, **words}
        return self.ask(f"/api/v1/{what}?{urllib.parse.urlencode({key: str(word) for key, word in query.items()})}")

    def until_indexed(self, count: int, **words: object) -> None:
        """Wait until the database contains this many windows."""
        deadline = time.monotonic() + PATIENCE_S
        found = -1
        while time.monotonic() < deadline:
            answer = self.question("services", **words)
            found = sum(row["windows"] for row in answer.json()["services"]) if answer.status == 200 else -1
            if found == count:
                return
            assert found <= count, f"{found} windows, {count} at most were sent"
            time.sleep(0.05)
        raise AssertionError(f"{found} of {count} windows after {PATIENCE_S} s")


@dataclass
class Served(Client):
    process: subprocess.Popen[str] | None = None


@contextmanager
def served(data: Path, *words: str, token: str = "", prefix: tuple[str, ...] = ()) -> Iterator[Served]:
    """Run a server.

    At the end SIGTERM stops it, unless it has ended already, and its exit code must be 0.

    Args:
        data: Folder of the data.
        words: Further arguments.
        token: Token of the client.
        prefix: Command prefix that runs the server.
    """
    port = free_port()
    command = [*prefix, sys.executable, "-m", "pyprof", "server", "--data", str(data), "--port", str(port), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    client = Served(port, token, process=process)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                client.ask("/healthz")
                break
            except urllib.error.URLError:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield client
    finally:
        killed = process.poll() is not None
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert killed or process.returncode == 0, said


def windows(service: str, count: int, profile: Profile | None = None, /, **labels: str) -> list[SpoolSegment]:
    """Return this many windows of one minute, the last of which has just ended."""
    found = profile or marked()
    if labels:
        threads = tuple(replace(each, labels=tuple(sorted(labels.items()))) for each in found.threads)
        found = replace(found, threads=threads)
    end = time.time_ns() // 10**9 * 10**9
    return [segment(found, service, end - at * 60 * 10**9) for at in range(count)]


def name_of(service: str, age_s: float = 0.0) -> SegmentName:
    return SegmentName.new(service, time.time_ns() - int(age_s * 1e9))
