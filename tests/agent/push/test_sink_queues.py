"""Tests of the pusher, which sends segments to sinks. The links in the spool are its only state."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from pyprof.fleet.agent import config
from pyprof.fleet.agent.health import Conditions
from pyprof.fleet.agent.metrics import PUSHES
from pyprof.fleet.agent.push_sink_queues import MAX_BEHIND_S, SLOW_REQUEST_S, Pusher, Pushers
from pyprof.fleet.agent.push_sink_types import KINDS, FolderSink, PushTarget, ServerSink, made
from pyprof.fleet.agent.spool import Caps, Spool, SpoolSegment
from pyprof.fleet.toml_config_files import BadConfig
from pyprof.fleet.wire.push_response_verdicts import GRPC, HTTP, LATER, REFUSED, NotSent, RefusedForGood, SegmentSink
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.model.loss_reason_texts import COUNTERS
from pyprof.problem_counters import Diagnostics
from tests.agent.push.receivers import Said, receiver

RULE = '[[rule]]\nname = "x"\n'


def opened(folder: Path, caps: Caps | None = None) -> Spool:
    folder.mkdir(exist_ok=True)
    found = Spool(str(folder), caps or Caps(), Diagnostics(), sinks=("nas",), clock=lambda: 0)
    found.open()
    return found


def of(spool: Spool, sink: SegmentSink) -> Pusher:
    return Pusher("nas", sink, spool, threading.Lock(), Conditions(lambda *_, **__: None), Diagnostics())


def pusher(spool: Spool, to: Path) -> Pusher:
    return of(spool, FolderSink(str(to)))


def segments(count: int) -> list[SpoolSegment]:
    return [SpoolSegment(SegmentName.new("web", at), b"%d" % at) for at in range(1, count + 1)]


def links(folder: Path) -> list[Path]:
    return list(folder.glob("queue/nas/*/*/*"))


def test_folder_that_was_away_gets_all_once_it_is_there(tmp_path: Path) -> None:
    spool, to = opened(tmp_path / "spool"), tmp_path / "nas"
    kept = segments(250)
    assert spool.store_window(kept)
    away = pusher(spool, to)
    assert away.push() == 0
    assert away.later["disk"] == 1
    assert len(links(tmp_path / "spool")) == 250
    to.mkdir()
    assert pusher(spool, to).push() == 250
    assert [(to / each.name.path).read_bytes() for each in kept] == [each.data for each in kept]
    assert not links(tmp_path / "spool")
    assert len(list((tmp_path / "spool").glob("19*/web/*"))) == 250


@pytest.mark.parametrize("place", ["{day}", "{day}/{folder}"])
def test_link_that_others_plant_in_the_folder_leads_nowhere(place: str, tmp_path: Path) -> None:
    spool, to, elsewhere = opened(tmp_path / "spool"), tmp_path / "nas", tmp_path / "elsewhere"
    kept = segments(3)
    assert spool.store_window(kept)
    name = kept[0].name
    link = to / place.format(day=name.day, folder=name.folder)
    link.parent.mkdir(parents=True)
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    sent = pusher(spool, to)
    assert (sent.push(), sent.later["disk"]) == (0, 1)
    assert list(elsewhere.iterdir()) == []
    link.unlink()
    assert pusher(spool, to).push() == 3


def test_killed_between_sending_and_unlinking_sends_again_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, to = opened(tmp_path), tmp_path / "nas"
    to.mkdir()
    assert spool.store_window([SpoolSegment(SegmentName.new("web", 1), b"one")])
    with monkeypatch.context() as patch:
        patch.setattr(spool, "sent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pusher(spool, to).push()
    assert len(list(to.glob("*/*/*"))) == 1
    assert pusher(opened(tmp_path), to).push() == 1
    assert len(list(to.glob("*/*/*"))) == 1
    assert not links(tmp_path)


class Scripted:
    """A sink that raises a given sequence of errors and then accepts every segment."""

    def __init__(self, *does: Exception | None) -> None:
        self._does: Iterator[Exception | None] = chain(does, repeat(None))
        self.taken: list[SegmentName] = []

    def send(self, name: SegmentName, data: bytes) -> None:
        error = next(self._does)
        if error is not None:
            raise error
        self.taken.append(name)


ANSWERS = {
    400: ("refused", "bad_request"),
    413: ("refused", "too_large"),
    422: ("refused", "unreadable"),
    401: ("later", "unauthorized"),
    404: ("later", "not_there"),
    429: ("later", "limited"),
    500: ("later", "unavailable"),
    503: ("later", "unavailable"),
    302: ("later", "redirected"),
    418: ("later", "otherwise"),
}


def test_each_answer_of_a_backend_is_counted_exactly_and_nothing_is_lost(tmp_path: Path) -> None:
    """Alternate each error response with successes.

    The pusher sets refused segments aside and retries the others later.
    """
    spool = opened(tmp_path / "spool")
    kept = segments(len(ANSWERS) * 3)
    assert spool.store_window(kept)
    script = iter([status for status in ANSWERS for status in (200, status, 201)])
    with receiver(lambda _: Said(next(script, 200))) as server:
        pushing = of(spool, ServerSink(server.endpoint()))
        for _ in range(len(ANSWERS) + 1):
            pushing.push()
    refused = Counter(word for kind, word in ANSWERS.values() if kind == "refused")
    later = Counter(word for kind, word in ANSWERS.values() if kind == "later")
    assert {word: count for word, count in pushing.refused.items() if count} == refused
    assert {word: count for word, count in pushing.later.items() if count} == later
    assert pushing.sent == len(kept) - refused.total()
    assert not links(tmp_path / "spool")
    aside = {folder.name: len(list(folder.iterdir())) for folder in (tmp_path / "spool/refused").iterdir()}
    assert aside == refused
    bodies = Counter(asked.body for asked in server.asked)
    assert bodies.keys() == {each.data for each in kept}
    assert len(server.asked) == len(kept) + later.total()


def test_backend_that_is_down_costs_only_what_the_caps_drop(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool", Caps(most_files=100))
    down = of(spool, Scripted(*[NotSent("unreachable")] * 50))
    for each in segments(360):  # one window a minute for six hours
        assert spool.store_window([each])
        if each.name.end_ns % 10 == 0 and down.later["unreachable"] < 36:
            assert down.push() == 0
    assert down.lag()[:2] == (100, 300)
    up = Scripted()
    assert of(spool, up).push() == 100
    assert [name.end_ns for name in up.taken] == list(range(261, 361)), "oldest first"
    assert spool._diagnostics.counts == {"segment_dropped_max_files": 260}


def test_segment_at_which_a_receiver_always_fails_is_set_aside_when_others_are_taken(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(3))

    class Poisoned(Scripted):
        def send(self, name: SegmentName, data: bytes) -> None:
            if name.end_ns == 1:
                raise NotSent("unavailable")
            super().send(name, data)

    sink = Poisoned()
    pushing = of(spool, sink)
    tries = 0
    while links(tmp_path / "spool"):
        pushing.push()
        tries += 1
        assert tries < 20
    assert tries > 3
    assert pushing.refused["never_taken"] == 1
    assert sorted(name.end_ns for name in sink.taken) == [2, 3]


def test_receiver_that_fails_at_all_segments_has_them_all_later(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(3))
    pushing = of(spool, Scripted(*[NotSent("unavailable")] * 100))
    for _ in range(20):
        assert pushing.push() == 0
    assert sum(pushing.refused.values()) == 0
    assert len(links(tmp_path / "spool")) == 3


def test_pause_grows_with_failures_and_heeds_what_the_receiver_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(1))
    errors = [*[NotSent("limited")] * 12, NotSent("limited", after_s=1000.0)]
    pushing = of(spool, Scripted(*errors))
    pauses = []
    for _ in errors:
        pushing.push()
        pauses.append(pushing.pause())
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[11] == 300.0
    assert pauses[12] == 1100.0
    assert pushing.push() == 1
    assert pushing.pause() == 1.0


def test_sinks_begin_anew_with_the_configuration_and_keep_their_queues(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    lock = threading.Lock()
    pushers = Pushers(spool, lock, Conditions(lambda *_, **__: None), Diagnostics())
    away = PushTarget("nas", "folder", {"path": str(tmp_path / "away")})
    with lock:
        assert spool.store_window(segments(5))
    pushers.begin([away])
    there = tmp_path / "there"
    there.mkdir()
    pushers.begin([PushTarget("nas", "folder", {"path": str(there)}), PushTarget("b", "folder", {"path": str(there)})])

    def numbers() -> dict[tuple[str, str], float]:
        return {(name, labels["sink"]): number for name, labels, number in pushers.numbers() if "reason" not in labels}

    waited = threading.Event()
    for _ in range(200):
        if numbers()["push_sent", "nas"] == 5:
            break
        waited.wait(0.1)
    assert numbers()["push_sent", "nas"] == 5
    assert {state["sink"]: state["taken_seconds_ago"] is None for state in pushers.states()} == {
        "nas": False,
        "b": True,
    }
    assert (numbers()["push_queue_segments", "nas"], numbers()["push_lag_seconds", "nas"]) == (0, 0)
    assert {name for name, _, _ in pushers.numbers()} == {metric.name for metric in PUSHES}
    with lock:
        assert spool.store_window([SpoolSegment(SegmentName.new("web", 9), b"9")])
        assert (tmp_path / "spool/queue/b").exists()
    pushers.finish(time.monotonic())


def test_each_outcome_has_its_reason_in_the_one_table() -> None:
    words = {*LATER.values(), *REFUSED.values()}
    assert words == {name for name in COUNTERS_BY_NAME if name.startswith("push_")}
    assert {word for _, word in (*HTTP.values(), *GRPC.values())} - {""} <= {*LATER, *REFUSED}


COUNTERS_BY_NAME = {reason.name for reason in COUNTERS}


def test_each_type_of_sink_can_be_made() -> None:
    values = {"url": "http://127.0.0.1:9/x", "path": "/x"}
    assert KINDS
    for kind, (settings, _) in KINDS.items():
        given = {each.name: values[each.name] for each in settings if each.name in values}
        assert made(PushTarget("a", kind, given)), kind


@pytest.mark.parametrize(
    ("lines", "line", "text"),
    [
        ('name = "a"\ntype = "folder"\npath = "b"', 6, "absolute path"),
        ('name = "../a"\ntype = "folder"\npath = "/b"', 4, "is not a name"),
        ('name = "a"\ntype = "ftp"\npath = "/b"', 5, "is not one of pyprof, pyroscope"),
        ('name = "a"\ntype = "folder"', 3, "path is missing"),
        ('name = "a"\ntype = "otlp"\nurl = "http://u:p@host"', 6, "secrets have files"),
        ('name = "a"\ntype = "otlp"\nurl = "http://host"\npath = "/b"', 7, "path is not known"),
        ('name = "a"\ntype = "otlp"\nurl = "http://host"\nprotocol = "udp"', 7, "is not one of http, grpc"),
        ('name = "a"\ntype = "otlp"\nurl = "http://host"\nuser = "me"', 3, "belong together"),
        (
            'name = "a"\ntype = "otlp"\nurl = "http://host"\nheaders = { Authorization = "Bearer x" }',
            7,
            "secrets stand in files",
        ),
    ],
)
def test_wrong_push_is_said_with_its_line(lines: str, line: int, text: str) -> None:
    with pytest.raises(BadConfig, match=text) as caught:
        config.parse(f"{RULE}[[push]]\n{lines}\n", "x")
    assert caught.value.errors[0].line == line


def with_conditions(spool: Spool, sink: SegmentSink) -> tuple[Pusher, Conditions, list[dict[str, object]]]:
    lines: list[dict[str, object]] = []
    conditions = Conditions(lambda level, event, **fields: lines.append({"event": event, **fields}))
    return Pusher("nas", sink, spool, threading.Lock(), conditions, Diagnostics()), conditions, lines


@pytest.mark.parametrize("word", sorted(LATER))
def test_failing_sink_is_a_condition_with_cause_and_remedy_until_it_takes_a_segment(word: str, tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(1))
    pushing, conditions, lines = with_conditions(spool, Scripted(NotSent(word, "about"), NotSent(word, "again")))
    assert [pushing.push(), pushing.push()] == [0, 0]
    assert [(line["reason"], line["sink"], line["cause"], line["error"]) for line in lines] == [
        ("push_failing", "nas", word, "about")
    ]
    assert lines[0]["hint"]
    assert conditions.reasons == {"push_failing"}
    assert pushing.push() == 1
    assert lines[1]["event"] == "healthy again"
    assert not conditions.reasons


def test_slow_request_is_a_condition_while_it_lasts_and_until_a_faster_one(tmp_path: Path) -> None:
    spool, now, seen = opened(tmp_path / "spool"), 100.0, list[frozenset[str]]()
    assert spool.store_window(segments(2))

    class Slow:
        def send(self, name: SegmentName, data: bytes) -> None:
            nonlocal now
            for seconds in (SLOW_REQUEST_S - 1, 1) if data == b"1" else (1,):
                now += seconds
                pushing.check_speed()
                seen.append(conditions.reasons)

    clock = SimpleNamespace(monotonic=lambda: now)
    pushing, conditions, lines = with_conditions(spool, Slow())
    with mock.patch("pyprof.fleet.agent.push_sink_queues.time", clock):
        assert pushing.push() == 2
        assert seen == [set(), {"push_slow"}, {"push_slow"}], "the first request was slow, the second one is under way"
        pushing.check_speed()
    assert [(line["event"], line["sink"]) for line in lines] == [("degraded", "nas"), ("healthy again", "nas")]
    assert (lines[0]["request_seconds"], lines[0]["behind_seconds"]) == (SLOW_REQUEST_S, SLOW_REQUEST_S)


@pytest.mark.parametrize("fails", [False, True])
def test_queue_that_is_never_empty_for_a_minute_is_slow_unless_the_sink_fails(fails: bool, tmp_path: Path) -> None:
    spool, now, at = opened(tmp_path / "spool"), 100.0, 0

    class Server:
        def send(self, name: SegmentName, data: bytes) -> None:
            nonlocal now, at
            now, at = now + 5, at + 1
            pushing.check_speed()
            if fails:
                raise NotSent("unavailable", "about")
            if now < 100 + MAX_BEHIND_S:
                assert "push_slow" not in conditions.reasons
                assert spool.store_window([SpoolSegment(SegmentName.new("web", 1000 + at), b"")])

    clock = SimpleNamespace(monotonic=lambda: now)
    pushing, conditions, _ = with_conditions(spool, Server())
    assert spool.store_window(segments(1))
    with mock.patch("pyprof.fleet.agent.push_sink_queues.time", clock):
        while now < 100 + 2 * MAX_BEHIND_S and (fails or not pushing.sent):
            pushing.push()
        reasons = conditions.reasons
        pushing.check_speed()
    assert reasons == {"push_failing" if fails else "push_slow"}
    assert conditions.reasons == ({"push_failing"} if fails else set()), "the queue is empty"


@pytest.mark.parametrize("count", [0, 1])
def test_changed_sink_keeps_its_condition_until_it_has_sent_all(count: int, tmp_path: Path) -> None:
    spool, lines, to = opened(tmp_path / "spool"), list[dict[str, object]](), tmp_path / "there"
    conditions = Conditions(lambda level, event, **fields: lines.append({"event": event, **fields}))
    pushers = Pushers(spool, threading.Lock(), conditions, Diagnostics())
    pushers.begin([PushTarget("nas", "folder", {"path": str(tmp_path / "away")})])
    conditions.begin("push_failing", "about", sink="nas", cause="disk")
    if count:
        assert spool.store_window(segments(count))
    changed = PushTarget("nas", "folder", {"path": str(to)})
    with mock.patch.object(Pusher, "start"):
        pushers.begin([changed])
    assert conditions.reasons == {"push_failing"}
    to.mkdir()
    one = of(spool, FolderSink(str(to)))
    one._conditions = conditions
    assert one.push() == count
    assert not conditions.reasons
    conditions.begin("push_failing", "about", sink="nas", cause="disk")
    pushers.begin([])
    assert not conditions.reasons, "it is no sink any more"


def test_refused_segments_are_one_condition_and_name_the_cause(tmp_path: Path) -> None:
    spool, kept = opened(tmp_path / "spool"), segments(4)
    assert spool.store_window(kept)
    pushing, conditions, lines = with_conditions(spool, Scripted(*[RefusedForGood("too_old", "status 400")] * 3))
    assert pushing.push() == 1
    assert conditions.reasons == {"push_refused"}
    assert [(line["cause"], line["error"], line["sink"]) for line in lines] == [("too_old", "status 400", "nas")]
    assert [each["segment"] for each in conditions.failures()] == [kept[2].name.path], "the last one"


def test_error_that_no_sink_should_raise_keeps_the_thread_and_is_said(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(1))
    pushing, _, lines = with_conditions(spool, Scripted(ZeroDivisionError("division by zero")))
    assert pushing.push() == 0
    assert [(line["cause"], line["error"]) for line in lines] == [("otherwise", "ZeroDivisionError: division by zero")]
    assert pushing.push() == 1


def test_sink_that_leaves_the_configuration_is_no_failure_any_more(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    conditions = Conditions(lambda *_, **__: None)
    pushers = Pushers(spool, threading.Lock(), conditions, Diagnostics())
    assert spool.store_window(segments(1))
    pushers.begin([PushTarget("nas", "folder", {"path": str(tmp_path / "away")})])
    waited = threading.Event()
    while not conditions.reasons:
        waited.wait(0.01)
    conditions.begin("clock_differs", sink="nas")
    conditions.note("push_lost", sink="nas")
    pushers.begin([])
    assert not conditions.reasons
    pushers.finish(time.monotonic())


def test_segments_that_are_dropped_before_a_sink_has_them_are_counted_as_lost(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool", Caps(most_files=3))
    assert spool.store_window(segments(2))
    assert of(spool, Scripted()).push() == 2
    assert spool.store_window(segments(7)[2:])
    assert spool.lost == {"nas": 2}, "two of the four that were dropped had been sent"


def test_segments_that_others_remove_before_a_sink_has_them_are_lost_and_said(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(2))
    pushing, conditions, lines = with_conditions(spool, Scripted(NotSent("unreachable", "about")))
    assert pushing.push() == 0
    for link in links(tmp_path / "spool"):
        link.unlink()
    assert pushing.push() == 0
    assert pushing.removed == 2
    assert not spool.inventory.place("queue/nas").names
    assert conditions.reasons == {"push_lost"}
    assert [line["reason"] for line in lines] == ["push_failing", "push_lost", "push_failing"]


@pytest.mark.parametrize(
    ("status", "body", "cause"),
    [
        (507, b'{"reason": "disk_full", "error": "no room"}', "disk_full"),
        (401, b'{"reason": "wrong_token", "error": "No tenant has this token."}', "wrong_token"),
        (503, b'{"reason": "made_up", "error": "x"}', "unavailable"),
        (401, b"", "unauthorized"),
        (422, b'{"reason": "bad_segment", "error": "no pprof"}', "bad_segment"),
        (422, b"", "unreadable"),
    ],
)
def test_cause_is_the_reason_that_the_server_stated(status: int, body: bytes, cause: str, tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(1))
    with receiver(lambda _: Said(status, body=body)) as server:
        pushing, _, lines = with_conditions(spool, ServerSink(server.endpoint()))
        assert pushing.push() == 0
    assert [line["cause"] for line in lines] == [cause]
    assert lines[0]["hint"]


def test_segments_of_the_last_window_are_sent_when_the_agent_ends(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    pushers = Pushers(spool, threading.Lock(), Conditions(lambda *_, **__: None), Diagnostics())
    pushers.begin([PushTarget("nas", "folder", {"path": str(tmp_path / "nas")})])
    (tmp_path / "nas").mkdir()
    with mock.patch.object(Pusher, "pause", return_value=3600.0):
        assert spool.store_window(segments(3))
        assert pushers.finish(time.monotonic() + 60) == {}
    assert links(tmp_path / "spool") == []
    assert len(list((tmp_path / "nas").rglob("*.pb.gz"))) == 3


def test_segments_that_cannot_be_sent_when_the_agent_ends_are_counted(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    assert spool.store_window(segments(3))
    pushers = Pushers(spool, threading.Lock(), Conditions(lambda *_, **__: None), Diagnostics())
    gone = threading.Event()

    def hang(*_: object) -> None:
        gone.wait()

    with mock.patch.object(FolderSink, "send", hang):
        pushers.begin([PushTarget("nas", "folder", {"path": str(tmp_path)})])
        assert pushers.finish(time.monotonic() + 0.1) == {"nas": 3}
        gone.set()


def test_spool_that_cannot_be_changed_is_not_the_fault_of_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Push from a spool of which no file can be removed, then to a folder that takes no file."""
    spool, sink = opened(tmp_path / "spool"), Scripted()
    assert spool.store_window(segments(1))
    sends, conditions, _ = with_conditions(spool, sink)

    def fails(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(spool, "sent", fails)
        assert sends.push() == 0
    (failure,) = conditions.failures()
    assert (failure["cause"], failure["error"]) == ("spool", f"{spool.root}: Read-only file system")
    assert "spool.path" in str(failure["hint"])
    sends, conditions, _ = with_conditions(spool, Scripted(OSError(errno.EROFS, "Read-only file system")))
    assert sends.push() == 0
    (failure,) = conditions.failures()
    assert (failure["cause"], failure["error"]) == ("disk", "Read-only file system")
