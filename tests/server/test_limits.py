"""Tests of limits: expensive queries, large pushes and disconnected clients are refused, and others are answered."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from pyprof.errors import FormatError
from pyprof.fleet.agent.spool import SpoolSegment
from pyprof.fleet.server import request_limits
from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.ingest import large_body_process
from pyprof.fleet.server.ingest.ingest_app import ELSEWHERE, answer
from pyprof.fleet.server.ingest.large_body_process import LargeBodies
from pyprof.fleet.server.request_limits import MAX_OF_SEGMENT, App, Receive, Scope, Send, SeriesLimit
from pyprof.fleet.server.store.clickhouse_engine import StoreError
from pyprof.fleet.server.store.database import Store
from pyprof.importers import pprof
from pyprof.importers.profile_builder import About, Builder, function_frame
from pyprof.model.profile import ThreadInfo, ValueType
from tests.agent.filled import segment
from tests.server.serving import PATIENCE_S, Served, free_port, served, windows

pytestmark = pytest.mark.system

CONFIG = """[limits]
series = {series}
question_memory = "{memory}"
"""
KINDS = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("limits")
    config = folder / "server.toml"
    config.write_text(CONFIG.format(series=40, memory="2G"))
    with served(folder / "data", "--config", str(config)) as client:
        for each in windows("checkout", 3, version="1"):
            assert client.push(each).status == 200
        client.until_indexed(3, service="checkout")
        yield client


def labelled(service: str, count: int, at: int = 0) -> SpoolSegment:
    """Return a window with this many values of a label."""
    builder = Builder()
    stack = builder.add_stack([builder.add_frame(function_frame("main"))])
    for value in range(count):
        builder.add_sample(stack, (1, 5), ThreadInfo(1, 1, "t", "p", labels=(("request", f"{at}-{value}"),)))
    end_ns = time.time_ns() // 10**9 * 10**9 - at * 10**9
    return segment(builder.build(About("x", KINDS, ())), service, end_ns)


def number(server: Served, name: str) -> int:
    lines = server.ask("/metrics").body.decode().splitlines()
    (found,) = [line for line in lines if line.startswith(f"pyprof_server_{name}")]
    return int(found.rsplit(" ", 1)[1])


@pytest.mark.parametrize("count", [MAX_OF_SEGMENT + 1, 12_000])
def test_segment_with_a_bomb_of_labels_is_refused_with_limit_and_value(server: Served, count: int) -> None:
    answer = server.push(labelled("bomb", count))
    assert (answer.status, answer.json()["reason"]) == (422, "too_many_series")
    assert f"{min(count, 10_001):,} sets of labels, {MAX_OF_SEGMENT:,} at most" in answer.json()["error"]
    assert server.question("services", service="bomb").json()["services"] == []


def test_new_labels_beyond_the_limit_are_refused_and_known_ones_accepted(server: Served) -> None:
    answers = [server.push(labelled("endless", 10, at)) for at in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 422, 422]
    assert "41 sets of labels" in answers[3].json()["error"]
    assert server.push(labelled("endless", 10, 1)).status == 200, "labels that are known"
    server.until_indexed(4, service="endless")


class Stored(Store):
    """A store that has two sets of labels, or is unavailable."""

    def __init__(self) -> None:
        self.away = False

    def series(self, tenant: str, day: str, most: int) -> set[int]:
        if self.away:
            raise StoreError("away")
        return {1, 2}


def test_labels_that_the_database_has_count_when_a_server_starts() -> None:
    store = Stored()
    limit = SeriesLimit(2, store)
    limit.count_series("one", "2026-01-02", [1])
    with pytest.raises(Refused):
        limit.count_series("one", "2026-01-02", [3])
    store.away = True
    limit.count_series("one", "2026-01-03", [3])


def test_question_that_costs_too_much_is_refused_by_name_and_the_next_is_answered(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(CONFIG.format(series=100_000, memory="1M"))
    with served(tmp_path / "data", "--config", str(config)) as client:
        for at in range(4):
            assert client.push(labelled("checkout", 1000, at)).status == 200
        deadline = time.monotonic() + PATIENCE_S
        while (answer := client.question("profile", service="checkout")).status != 422:  # until all windows are indexed
            assert time.monotonic() < deadline
        assert answer.json()["reason"] == "question_too_dear"
        assert "at most 30 s and 1 MiB" in answer.json()["error"]
        assert client.ask("/healthz").status == 200


def test_question_of_a_client_that_hangs_up_is_given_up(server: Served) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while number(server, "questions_given_up") == 0:
        assert time.monotonic() < deadline
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /api/v1/profile?from=0&to=4000000000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert server.question("services").status == 200


def test_ten_clients_at_once_have_the_answers_that_one_has(server: Served) -> None:
    words = {"to": int(time.time()) + 60, "service": "checkout"}
    questions = [(what, words) for what in ("functions", "timeline", "labels")]
    questions.append(("profile", {**words, "format": "collapsed"}))
    alone = [server.question(what, **each).body for what, each in questions]
    with ThreadPoolExecutor(10) as clients:
        asked = [clients.submit(server.question, what, **each) for what, each in questions * 10]
    found = [each.result() for each in asked]
    assert [answer.status for answer in found] == [200] * 40
    assert all(answer.body == alone[at % 4] for at, answer in enumerate(found))


def long_name(number: int) -> str:
    """Return a name of 3,400 letters that gzip makes only half as long."""
    return random.Random(number).randbytes(1700).hex()


def large(service: str, count: int = 3_000) -> SpoolSegment:
    """Return a window with this many stacks, whose names make it larger than the server process itself parses."""
    builder = Builder()
    main = builder.add_frame(function_frame("main"))
    for number in range(count):
        frames = [main, builder.add_frame(function_frame(long_name(number)))]
        builder.add_sample(builder.add_stack(frames), (1, 5))
    return segment(builder.build(About("x", KINDS, ())), service, time.time_ns() // 10**9 * 10**9)


def test_large_body_is_read_elsewhere_and_counts_like_others(server: Served) -> None:
    sent = large("huge")
    assert pprof.read_stated_size(sent.data) > 8 << 20
    assert [server.push(sent).status for _ in range(2)] == [200, 409]
    server.until_indexed(1, service="huge")
    (found,) = server.question("services", service="huge").json()["services"]
    assert found["amount"] == 5 * 3_000
    lines = server.question("profile", service="huge", format="collapsed").body.decode().splitlines()
    assert sorted(lines) == sorted(f"main;{long_name(number)} 1" for number in range(3_000))
    cut = SpoolSegment(sent.name, sent.data[:-100] + sent.data[-4:])
    answer = server.push(cut)
    assert (answer.status, answer.json()["reason"]) == (400, "bad_segment")
    assert server.process is not None
    readers = subprocess.run(["pgrep", "-P", str(server.process.pid), "-f", "large_body_process"], capture_output=True)
    assert 1 <= len(readers.stdout.split()) <= 1 + ELSEWHERE


@pytest.fixture
def bodies() -> Iterator[LargeBodies]:
    found = LargeBodies()
    yield found
    found.close()


def test_large_bodies_are_read_by_another_process_that_comes_after_others(bodies: LargeBodies) -> None:
    ours = os.nice(0)  # a recording of an earlier test may still lower the priority
    reader = bodies.call(True, os.getpid)
    assert reader != os.getpid()
    assert bodies.call(True, os.getpid) == reader
    assert bodies.call(True, os.nice, 0) == min(ours + 19, 19)
    with pytest.raises(FormatError, match="gzip"):
        bodies.call(True, pprof.inflate, b"\x1f\x8bxyz")
    assert bodies.call(True, os.getpid) == reader


class Ending(threading.Event):
    """An event that never comes and records the timeouts of waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


WORK = "import time; begun = time.process_time()\nwhile time.process_time() < begun + 0.2: pass\ntime.sleep(0.3)"
"""Python code that uses the processor for 0.2 s and then sleeps for 0.3 s."""


@pytest.mark.parametrize(("is_large", "rests"), [(True, [0, 0.6, 0]), (False, [0, 0, 0])])
def test_reader_rests_three_times_its_processor_time_if_the_body_was_large(is_large: bool, rests: list[float]) -> None:
    ending, now = Ending(), 100.0
    bodies = LargeBodies(lambda: now, ending)
    try:
        bodies.call(is_large, exec, WORK)
        bodies.call(False, os.getpid)
        bodies.call(is_large, os.getpid)
        assert ending.waits == pytest.approx(rests, abs=0.5)
        bodies.close()
        with pytest.raises(FormatError, match="any more"):
            bodies.call(True, os.getpid)
    finally:
        bodies.close()


def test_reader_of_large_bodies_that_ends_costs_one_body(bodies: LargeBodies) -> None:
    reader = bodies.call(True, os.getpid)
    with pytest.raises(FormatError, match="has ended"):
        bodies.call(True, os._exit, 1)
    after = bodies.call(True, os.getpid)
    assert after != reader
    os.kill(after, signal.SIGKILL)
    os.waitid(os.P_PID, after, os.WEXITED | os.WNOWAIT)
    assert bodies.call(True, os.getpid) not in (reader, after)


def test_reader_that_needed_much_memory_is_replaced(bodies: LargeBodies, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({bodies.call(True, os.getpid) for _ in range(40)}) == 1
    monkeypatch.setattr(large_body_process, "_MAX_MEMORY", 1 << 27)
    first = bodies.call(True, os.getpid)
    assert bodies.call(True, len, bytes(1 << 20)) == 1 << 20
    assert bodies.call(True, os.getpid) == first
    bodies.call(True, exec, "import builtins; builtins.kept = bytes(1 << 27) + b'.'")
    assert bodies.call(True, os.getpid) != first


_DIES = """
import os
import random
from pyprof.fleet.server.ingest.large_body_process import LargeBodies
os.write(1, b"%d" % LargeBodies().call(True, os.getpid))
os._exit(0)
"""


def test_reader_of_large_bodies_ends_with_the_server() -> None:
    reader = int(subprocess.check_output([sys.executable, "-c", _DIES], timeout=PATIENCE_S))
    until(lambda: not Path(f"/proc/{reader}").exists())


async def answers(_scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to any request once all of it has arrived."""
    while (await receive()).get("more_body"):
        pass
    await answer(send, 200, b"{}", {})


@contextmanager
def answering(app: App = answers) -> Iterator[int]:
    """Run a server in this process and yield its port."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, http=request_limits.BoundedProtocol, lifespan="off", loop="asyncio")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield port
    finally:
        server.should_exit = True
        thread.join()


WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def answered(client: socket.socket) -> bool:
    """Return True if the client gets a complete response, which may come in parts."""
    found = b""
    while not found.endswith(b"{}") and (part := client.recv(1000)):
        found += part
    return found.startswith(b"HTTP/1.1 200")


def test_head_without_end_is_hung_up_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "PATIENCE_S", 1000)
    with answering() as port, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S / 6) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        try:
            for _ in range(200):
                client.sendall(b"X-Long: " + b"x" * 1000 + b"\r\n")
            assert client.recv(1) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass


def test_head_that_follows_a_long_body_has_all_its_room() -> None:
    length = 2 * request_limits.MAX_HEAD
    post = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
    with answering() as port, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S / 6) as client:
        for said in (post + b"x" * length, WHOLE):
            client.sendall(said[:-9])
            time.sleep(0.05)  # splits the request into two parts
            client.sendall(said[-9:])
            assert answered(client)


def test_client_that_says_nothing_or_half_a_head_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "PATIENCE_S", 0.2)
    with answering() as port:
        for first, then in ((b"", b""), (WHOLE[:9], b""), (WHOLE, WHOLE[:9])):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S / 6) as client:
                client.sendall(first)
                if then:
                    assert answered(client)
                    client.sendall(then)
                while client.recv(1000):
                    pass


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_clients_that_say_nothing_do_not_keep_others_out(server: Served) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        slow.putrequest("POST", "/ingest?name=slow")
        slow.putheader("Content-Length", "1000")
        slow.endheaders(b"x")
        assert server.question("services").status == 200
        assert server.push(windows("others", 1, version="1")[0]).status == 200
        slow.close()
    finally:
        for each in silent:
            each.close()
