"""Tests of the HTTP client against hostile receivers.

Response sizes and times are bounded, secrets go to no other host.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from pyprof.fleet.agent.health import MIN_INTERVAL_S, Conditions
from pyprof.fleet.agent.push_sink_queues import ReceiverClock
from pyprof.fleet.wire.push_client import (
    MAX_ANSWER,
    MAX_READ,
    Credentials,
    Endpoint,
    HttpClient,
    clock_ahead_s,
    stated_reason,
    wait_s,
)
from pyprof.fleet.wire.push_response_verdicts import NO_REASON, NotSent, RefusedForGood, StatedReason, judge_http
from pyprof.lazy_dataclasses import replace
from tests.agent.push.receivers import Asked, Said, receiver, talker


def kept(path: Path, text: str = "s3cret\n", mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def failed(said: Said, timeout_s: float = 20.0) -> NotSent:
    with receiver(lambda _: said) as server:
        client = HttpClient(replace(server.endpoint(), timeout_s=timeout_s))
        with pytest.raises(NotSent) as caught:
            client.post("/x", b"data", {})
    return caught.value


@pytest.mark.parametrize(
    ("body", "stated"),
    [
        (b'{"reason": "disk_full", "error": "no room"}', StatedReason("disk_full", "no room")),
        (b'{"reason": "disk_full", "error": "a\\nb\\u001b[31m"}', StatedReason("disk_full", "a?b?[31m")),
        (b'{"reason": "disk_full", "error": 5}', StatedReason("disk_full")),
        (b'{"reason": "Disk Full\\n"}', NO_REASON),
        (b'{"reason": ["disk_full"]}', NO_REASON),
        (b'["reason"]', NO_REASON),
        (b"[" * 60_000, NO_REASON),
        (b"<html>", NO_REASON),
    ],
)
def test_stated_reason_is_a_name_and_printable_text_or_none(body: bytes, stated: StatedReason) -> None:
    assert stated_reason(body) == stated


@pytest.mark.parametrize(
    ("status", "reason", "raised", "word"),
    [
        (507, "disk_full", NotSent, "unavailable"),
        (422, "too_new", RefusedForGood, "too_new"),
        (422, "too_old", RefusedForGood, "too_old"),
        (422, "of_another_receiver", RefusedForGood, "unreadable"),
        (503, "", NotSent, "unavailable"),
    ],
)
def test_stated_reason_decides_and_stands_in_the_error(
    status: int, reason: str, raised: type[NotSent] | type[RefusedForGood], word: str
) -> None:
    with pytest.raises(raised) as caught:
        judge_http(status, 0.0, StatedReason(reason, "why" if reason else ""))
    assert getattr(caught.value, "word", "") == word
    assert str(caught.value) == (f"status {status}, {reason}: why" if reason else f"status {status}")


def test_answer_without_end_is_left() -> None:
    error = failed(Said(endless=True))
    assert (error.word, str(MAX_ANSWER) in str(error)) == ("nonsense", True)


def talked(words: Iterable[bytes], timeout_s: float = 20.0) -> NotSent:
    with talker(words) as url, pytest.raises(NotSent) as caught:
        HttpClient(Endpoint(url, timeout_s=timeout_s)).post("/x", b"data", {})
    return caught.value


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (CHUNKED, b"1;%s\r\nx\r\n" % (b"e" * 60_000)),
        (CHUNKED + b"0\r\n", b"A: b\r\n"),
    ],
    ids=["answers before it", "words of pieces", "headers after it"],
)
def test_answer_that_goes_on_without_a_body_is_left(head: bytes, more: bytes) -> None:
    error = talked(chain([head], repeat(more * 1000)))
    assert (error.word, str(MAX_READ) in str(error)) == ("nonsense", True)


@pytest.mark.parametrize("head", [b"", b"Content-Length: 9\r\n\r\ntoo few"])
def test_answer_that_breaks_off_says_nothing(head: bytes) -> None:
    assert talked([b"HTTP/1.1 200 OK\r\n", head]).word == "nonsense"


def dripped(words: Iterable[bytes]) -> Iterator[bytes]:
    for word in words:
        time.sleep(0.1)
        yield word


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_answer_that_has_not_come_in_time_is_none(head: bytes) -> None:
    assert talked(chain([head], dripped(repeat(b"a: b\r\n"))), 0.5).word == "timeout"


def test_proxy_that_answers_slowly_or_without_end_is_left() -> None:
    slow, endless = dripped(repeat(b"a: b\r\n")), repeat(b"a: b\r\n" * 1000)
    for words, timeout_s, expected in ((slow, 0.5, "timeout"), (endless, 20.0, "nonsense")):
        with talker(chain([b"HTTP/1.1 200 OK\r\n"], words)) as url, pytest.raises(NotSent) as caught:
            HttpClient(Endpoint("https://far.invalid:80", proxy=url, timeout_s=timeout_s)).post("/x", b"data", {})
        assert caught.value.word == expected


def test_type_of_an_answer_is_short() -> None:
    with receiver(lambda _: Said(200, {"Content-Type": f"text/{'x' * 60_000}"})) as server:
        assert len(HttpClient(server.endpoint()).post("/x", b"data", {}).kind) == 100


def test_receiver_that_never_answers_is_left() -> None:
    assert failed(Said(silent=True), 0.5).word == "timeout"


def test_closed_port_is_no_connection() -> None:
    with receiver(lambda _: Said()) as server:
        gone = server.endpoint()
    with pytest.raises(NotSent) as caught:
        HttpClient(gone).post("/x", b"", {})
    assert caught.value.word == "unreachable"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_is_not_followed_and_the_other_host_hears_no_secret(tmp_path: Path, status: int) -> None:
    with receiver(lambda _: Said()) as other:
        to = f"{other.url.replace('127.0.0.1', 'localhost')}/x"
        with receiver(lambda _: Said(status, {"Location": to})) as server:
            client = HttpClient(server.endpoint(credentials=Credentials(kept(tmp_path / "token"))))
            with pytest.raises(NotSent) as caught:
                client.post("/x", b"data", {})
    assert caught.value.word == "redirected"
    assert server.asked[0].headers["Authorization"] == "Bearer s3cret"
    assert other.asked == []


def test_basic_authentication_and_a_token_that_changes_are_read_from_files(tmp_path: Path) -> None:
    path = kept(tmp_path / "password", "pass:word\nmore")
    with receiver(lambda _: Said()) as server:
        client = HttpClient(server.endpoint(credentials=Credentials("", "me", path)))
        client.post("/x", b"", {})
        kept(tmp_path / "password", "new")
        client.post("/x", b"", {})
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Basic bWU6cGFzczp3b3Jk", "Basic bWU6bmV3"]


@pytest.mark.parametrize(("text", "mode"), [("s3cret", 0o644), ("s3cret", 0o660), ("", 0o600), ("s3c\x07ret", 0o600)])
def test_file_that_others_may_read_or_that_has_no_secret_is_not_used_nor_shown(
    tmp_path: Path, text: str, mode: int
) -> None:
    with receiver(lambda _: Said()) as server:
        client = HttpClient(server.endpoint(credentials=Credentials(kept(tmp_path / "token", text, mode))))
        with pytest.raises(NotSent) as caught:
            client.post("/x", b"", {})
    assert caught.value.word == "credentials"
    assert "s3c" not in str(caught.value)
    assert server.asked == []


def test_proxy_of_the_sink_gets_the_request() -> None:
    with receiver(lambda _: Said()) as proxy:
        HttpClient(replace(proxy.endpoint(proxy=proxy.url), url="http://far.invalid:80")).post("/x", b"data", {})
    (asked,) = proxy.asked
    assert (asked.path, asked.body) == ("http://far.invalid:80/x", b"data")


def test_certificate_that_is_not_known_is_no_connection(tmp_path: Path) -> None:
    with receiver(lambda _: Said()) as server:
        plain = replace(server.endpoint(), url=server.url.replace("http:", "https:"))
        for ca_file in ("", str(tmp_path / "none.pem")):
            with pytest.raises(NotSent) as caught:
                HttpClient(replace(plain, ca_file=ca_file)).post("/x", b"", {})
            assert caught.value.word == "insecure"


def test_retry_after_is_seconds_or_a_date_and_bounded() -> None:
    def asked(_: Asked) -> Said:
        return Said(429, {"Retry-After": "17"})

    with receiver(asked) as server, pytest.raises(NotSent) as caught:
        HttpClient(server.endpoint()).post("/x", b"", {})
    assert (caught.value.word, caught.value.after_s) == ("limited", 17.0)
    assert 0 < wait_s(email.utils.formatdate(time.time() + 3000, usegmt=True)) <= 3000
    assert wait_s("99999999999999999999") == 3600.0
    assert wait_s(email.utils.formatdate(time.time() - 60)) == 0.0
    assert [wait_s(text) for text in ("", "-5", "soon", "1e9", "Mon, 99 Foo 99999")] == [0.0] * 5


@pytest.mark.parametrize(
    ("date", "ahead_s"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:16:39 GMT", 0.5),
        ("Thu, 01 Jan 1970 00:16:30 GMT", 9.5),
        ("Thu, 01 Jan 1970 00:16:50 GMT", -8.0),
        ("Thu, 32 Jan 1970", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_date_of_an_answer_says_how_far_clocks_differ_at_least(date: str, ahead_s: float | None) -> None:
    """Check the clock offset from a Date header whose request lasted from second 1000.5 to second 1002."""
    assert clock_ahead_s(date, 1000.5, 1002) == ahead_s


def test_clocks_that_differ_are_said_once_and_when_they_agree_again() -> None:
    said: list[tuple[object, ...]] = []
    now = 0.0
    conditions = Conditions(
        lambda level, event, **fields: said.append((level, event, fields["sink"], fields.get("ahead_seconds"))),
        lambda: now,
    )
    clock = ReceiverClock("server", conditions)
    for ahead_s in (0.0, 29.0, -31.0, -32.0, -31.0, 3600.0, 3601.0, 1.0, 0.0):
        now += MIN_INTERVAL_S
        clock.compare(ahead_s)
    assert said == [
        ("warning", "degraded", "server", -31),
        ("warning", "degraded", "server", 3600),
        ("info", "healthy again", "server", None),
    ]
    assert clock.ahead_s == 0.0


@pytest.mark.parametrize("status", [200, 503])
def test_each_answer_has_its_date_compared(status: int) -> None:
    heard: list[float] = []
    with receiver(lambda _: Said(status)) as server:
        client = HttpClient(replace(server.endpoint(), on_date=heard.append))
        with contextlib.suppress(NotSent):
            client.post("/x", b"data", {})
    assert len(heard) == 1
