"""Tests of the rate limit of large bodies: senders have equal shares, and refused bodies are not read."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing, suppress
from http.client import HTTPConnection

import pytest

from pyprof.fleet.server import request_limits
from pyprof.fleet.server.ingest.ingest_app import answer
from pyprof.fleet.server.request_limits import RATE, SMALL, BodyRateLimit, Message, Receive, Scope, Send, Throttle
from tests.server.serving import PATIENCE_S
from tests.server.test_limits import answering

pytestmark = pytest.mark.system

PART = 1 << 18
GIGABYTE = 1 << 30


class Told(Throttle):
    """A throttle that records (sender, size) and never delays."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[bytes, int]] = []

    def wait_s(self, sender: bytes, size: int) -> float:
        self.told.append((sender, size))
        return 0.0


async def reads(_scope: Scope, receive: Receive, send: Send) -> None:
    """Read a whole request and respond with the size of its body."""
    found = 0
    while (message := await receive()).get("more_body"):
        found += len(message["body"])
    await answer(send, 200, b"%d" % (found + len(message["body"])), {})


async def refuses(_scope: Scope, _receive: Receive, send: Send) -> None:
    await answer(send, 413, b"refused", {})


def asked(app: BodyRateLimit, size: int, *headers: tuple[bytes, bytes]) -> tuple[list[Message], int]:
    """Send a request in parts without delay. Return the sent messages and the number of unread bytes of the body."""
    left, sent = size, list[Message]()

    async def receive() -> Message:
        nonlocal left
        part = min(left, PART)
        left -= part
        return {"type": "http.request", "body": bytes(part), "more_body": left > 0}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "headers": list(headers)}, receive, send))
    return sent, left


def stated(size: int) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % size


CHUNKED = (b"transfer-encoding", b"chunked")


def test_senders_have_equal_parts_of_the_rate_and_what_is_long_ago_does_not_count() -> None:
    moment = 100.0
    throttle = Throttle(lambda: moment)
    assert [throttle.wait_s(b"one", RATE) for _ in range(2)] == [1, 2]
    assert throttle.wait_s(b"other", RATE) == 2, "half of the rate"
    assert throttle.wait_s(b"one", RATE) == 4
    moment = 103.0
    assert throttle.wait_s(b"other", RATE) == 2, "he has waited, the first one has not"
    moment = 1000.0
    assert throttle.wait_s(b"one", RATE // 2) == 0.5


@pytest.mark.parametrize("length", [stated(3 << 20), CHUNKED])
def test_large_body_comes_at_a_pace_after_its_first_mebibyte(length: tuple[bytes, bytes]) -> None:
    throttle = Told()
    sent, left = asked(BodyRateLimit(reads, throttle), 3 << 20, length, (b"authorization", b"Bearer x"))
    assert (sent[1]["body"], left) == (b"%d" % (3 << 20), 0)
    assert throttle.told == [(b"Bearer x", PART)] * ((2 << 20) // PART)
    assert [name for name, _ in sent[0]["headers"]].count(b"connection") == 0, "its connection stays open"
    assert len(sent) == 2


def test_small_bodies_are_not_told_of() -> None:
    throttle = Told()
    for headers in ([stated(SMALL)], []):
        sent, left = asked(BodyRateLimit(reads, throttle), SMALL, *headers)
        assert (sent[1], left) == ({"type": "http.response.body", "body": b"%d" % SMALL}, 0)
    assert throttle.told == []


def test_little_that_is_left_when_a_body_is_refused_is_read_at_a_pace_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_limits, "LEAVE_S", 0.1)
    for size, length, expected in (
        (request_limits.MAX_LEFT, stated(request_limits.MAX_LEFT), 0),
        (request_limits.MAX_LEFT + 1, stated(request_limits.MAX_LEFT + 1), request_limits.MAX_LEFT + 1),
        (GIGABYTE, CHUNKED, GIGABYTE - request_limits.MAX_LEFT),
    ):
        throttle = Told()
        sent, left = asked(BodyRateLimit(refuses, throttle), size, length, (b"authorization", b"any"))
        assert left == expected
        assert {sender for sender, _ in throttle.told} <= {b""}
        assert sum(each for _, each in throttle.told) == max(size - left - SMALL, 0)
        assert (b"connection", b"close") in sent[0]["headers"]
        assert [(each.get("body", b""), each.get("more_body", False)) for each in sent[1:]] == [
            (b"refused", True),
            (b"", False),
        ]


@pytest.mark.parametrize("chunked", [False, True])
def test_gigabyte_that_is_refused_is_not_read(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a body without end: the client gets the response, and can send only what the kernel's buffers hold."""
    monkeypatch.setattr(request_limits, "LEAVE_S", 0.5)
    piece = b"%x\r\n%b\r\n" % (PART, bytes(PART)) if chunked else bytes(PART)
    length, sent = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {GIGABYTE}", 0
    client = socket.socket()
    client.settimeout(PATIENCE_S)
    with answering(BodyRateLimit(refuses)) as port, closing(client):
        client.connect(("127.0.0.1", port))
        client.sendall(f"POST / HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
        with suppress(ConnectionError):
            while sent < GIGABYTE:
                client.sendall(piece)
                sent += PART
        assert client.recv(1000).startswith(b"HTTP/1.1 413")
    assert PART <= sent < GIGABYTE // 8


def test_client_that_sends_all_before_it_reads_has_its_answer_and_may_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_limits, "LEAVE_S", PATIENCE_S)
    with (
        answering(BodyRateLimit(refuses)) as port,
        closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client,
    ):
        for _ in range(2):
            client.request("POST", "/", bytes(request_limits.MAX_LEFT))
            found = client.getresponse()
            assert (found.status, found.getheader("connection"), found.read()) == (413, "close", b"refused")


def test_large_body_is_whole_and_its_connection_serves_again() -> None:
    with (
        answering(BodyRateLimit(reads)) as port,
        closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client,
    ):
        client.connect()
        for size in (3 << 20, 10):
            for chunked in (False, True):
                body = iter([bytes(size)]) if chunked else bytes(size)
                first = client.sock
                client.request("POST", "/", body, encode_chunked=chunked)
                assert client.getresponse().read() == b"%d" % size
                assert client.sock is first


def head_is_refused(port: int, length: str) -> socket.socket:
    """Send only the headers of a request that is refused, and return the connection."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    client.sendall(f"POST / HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
    found = b""
    while not found.endswith(b"refused"):
        found += client.recv(1000)
    return client


@pytest.mark.parametrize("length", [f"Content-Length: {GIGABYTE}", "Transfer-Encoding: chunked"])
def test_client_that_is_refused_and_says_nothing_more_is_hung_up_on(
    length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "LEAVE_S", 0.2)
    with answering(BodyRateLimit(refuses)) as port, closing(head_is_refused(port, length)) as client:
        assert client.recv(1000) == b""


def test_client_that_is_refused_has_time_to_read_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "LEAVE_S", 5)
    length = f"Content-Length: {GIGABYTE}"
    with answering(BodyRateLimit(refuses)) as port, closing(head_is_refused(port, length)) as client:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1000)
