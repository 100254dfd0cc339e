"""Tests of the control socket: access checks, parsing of requests, and the client's handling of responses."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pyprof.errors import FormatError, UsageError
from pyprof.fleet.agent import control_socket
from pyprof.fleet.agent.config import parse as parse_config
from pyprof.fleet.agent.control_socket import (
    KEPT,
    MAX_ASKERS,
    MAX_BYTES,
    MAX_LINE,
    NAME,
    OUTCOMES,
    ControlClient,
    ControlRefused,
    ControlRequest,
    ControlResponse,
    ControlSocket,
    Peer,
    answers,
    parse,
    peer_of,
)
from pyprof.fleet.agent.last_minutes import FOLDER, NOT_KEPT, LastMinutes
from pyprof.fleet.agent.process_table import ProcessTable
from pyprof.fleet.agent.requested_recordings import MAX_AT_ONCE, OnDemand, RecordedNow, choice_of
from pyprof.fleet.agent.sampling_effort_controller import SETTLING, BudgetVerdict, CostBudget, Governor
from pyprof.fleet.cli.agent_record import joined
from pyprof.lazy_dataclasses import replace
from pyprof.model.fleet_loss_reasons import ASKS
from pyprof.model.profile import Profile
from pyprof.problem_counters import Diagnostics
from tests.exporters.profiles import golden

REQUEST = ControlRequest("checkout", 30, 499)


def test_request_comes_as_it_was_sent() -> None:
    for request in (REQUEST, ControlRequest("a b/ö\ud800", 0.5, 19.5, "offcpu")):
        assert parse(request.line()) == request


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"service": "x", "seconds": 1, "rate": 10, "more": 1}, "ask_malformed"),
        ({"service": "", "seconds": 1, "rate": 10}, "ask_malformed"),
        ({"service": ["x"], "seconds": 1, "rate": 10}, "ask_malformed"),
        ({"service": "x", "seconds": 1, "rate": 10, "mode": "lock"}, "ask_malformed"),
        ({"service": "x", "seconds": 1, "rate": 10, "mode": []}, "ask_malformed"),
        ({"seconds": 1, "rate": 10}, "ask_malformed"),
        ({"service": "x", "seconds": 301, "rate": 10}, "ask_too_much"),
        ({"service": "x", "seconds": 0, "rate": 10}, "ask_too_much"),
        ({"service": "x", "seconds": True, "rate": 10}, "ask_too_much"),
        ({"service": "x", "seconds": float("nan"), "rate": 10}, "ask_too_much"),
        ({"service": "x", "seconds": 1, "rate": float("inf")}, "ask_too_much"),
        ({"service": "x", "seconds": 1, "rate": 10**400}, "ask_too_much"),
        ({"service": "x", "seconds": -(10**400), "rate": 10}, "ask_too_much"),
        ({"service": "x", "seconds": 300, "rate": 501}, "ask_too_much"),
        ([], "ask_malformed"),
    ],
)
def test_request_that_is_none_or_too_much_is_refused(asked: object, reason: str) -> None:
    with pytest.raises(ControlRefused) as caught:
        parse(json.dumps(asked).encode())
    assert caught.value.reason == reason


@pytest.mark.parametrize("line", [b"", b"\xff", b"[" * 4000, b"{" * 5000, b'{"seconds": ' + b"9" * 4050 + b"}"])
def test_line_that_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(ControlRefused) as caught:
        parse(line)
    assert caught.value.reason == "ask_malformed"


def test_each_refusal_has_a_label() -> None:
    assert OUTCOMES[2:] == tuple(reason.name for reason in ASKS)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b'{"done": 1}',
        b'{"kept": -1}\n',
        b'{"kept": true}\n',
        b'{"kept": 5}\nabc',
        b'{"kept": %d}\n' % (MAX_BYTES + 1),
        b'{"kept": 0}\n' * 5000 + b'{"done": 1}\n',
        b'{"kept": 1}\n' + b"x" * MAX_LINE,
    ],
)
def test_answer_of_an_agent_that_lies_is_refused(said: bytes) -> None:
    stream = io.BytesIO(said)
    asked: list[int] = []
    taken: list[ControlResponse] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return stream.read(size)

    with pytest.raises(FormatError):
        taken.extend(answers(stream.readline, read))
    assert sum(asked) <= MAX_BYTES
    assert all(len(answer.data) == answer.number for answer in taken)


@pytest.mark.parametrize("word", [b'"ask_later"', b"{}", b"[]", b"7"])
def test_refusal_of_a_newer_agent_is_one(word: bytes) -> None:
    stream = io.BytesIO(b'{"refused": %s, "text": "at noon"}\n' % word)
    with pytest.raises(ControlRefused, match="at noon") as caught:
        list(answers(stream.readline, stream.read))
    assert caught.value.reason == "ask_failed"


def test_root_the_own_user_and_members_of_the_group_may_ask() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.groups >= {os.getegid(), *os.getgroups()}
    stranger = Peer(1, os.geteuid() + 4711, frozenset({100, 200}))
    assert [stranger.may_ask(group) for group in (None, 0, 100, 200, 300)] == [False, False, True, True, False]
    assert Peer(1, 0, frozenset()).may_ask(None)
    assert Peer(1, os.geteuid(), frozenset()).may_ask(None)


@contextmanager
def listening(folder: Path, answer: Callable[[ControlRequest, ControlClient], None]) -> Iterator[list[str]]:
    """Serve a control socket in the folder and yield the list of outcomes, which grows with each request."""
    outcomes: list[str] = []
    door = ControlSocket(answer, lambda _, outcome: outcomes.append(outcome))
    door.begin(str(folder), "")
    try:
        yield outcomes
    finally:
        door.close(time.monotonic() + 60)
    assert not (folder / NAME).exists()


def connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    with chdir(folder):
        connection.connect(NAME)
    connection.settimeout(60)
    return connection


def said(connection: socket.socket) -> dict[str, object]:
    with connection.makefile("rb") as lines:
        found: dict[str, object] = json.loads(lines.readline())
    return found


def test_socket_of_a_killed_agent_is_replaced_and_refuses_other_users(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 40)
    folder.mkdir()
    left = socket.socket(socket.AF_UNIX)
    with chdir(folder):
        left.bind(NAME)
    left.close()
    with listening(folder, lambda request, asker: asker.say(done=1)) as outcomes:
        assert (folder / NAME).stat().st_mode & 0o777 == 0o660
        with connected(folder) as connection:
            connection.sendall(REQUEST.line())
            assert said(connection) == {"done": 1}
    assert outcomes == ["answered"]
    (folder / NAME).write_text("a file is not taken for a socket")
    with pytest.raises(OSError, match="in use"):
        ControlSocket(lambda request, asker: None, lambda peer, outcome: None).begin(str(folder), "")
    with pytest.raises(UsageError, match="no group"):
        ControlSocket(lambda request, asker: None, lambda peer, outcome: None).begin(str(folder), "no such group")


def test_user_without_permission_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Peer(os.getpid(), os.geteuid() + 4711, frozenset({1}))
    monkeypatch.setattr(control_socket, "peer_of", lambda connection: stranger)
    with listening(tmp_path, lambda request, asker: asker.say(done=1)) as outcomes, connected(tmp_path) as connection:
        assert said(connection)["refused"] == "ask_not_allowed"
    assert outcomes == ["ask_not_allowed"]


def test_silent_and_malformed_clients_delay_no_other_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open more silent connections than the limit: the agent closes the oldest one and still answers other clients."""
    with listening(tmp_path, lambda request, asker: asker.say(done=1)) as outcomes:
        for garbage in (b"\0" * 9000, b"GET / HTTP/1.1\r\n\r\n", b"{}\n"):
            with connected(tmp_path) as connection:
                connection.sendall(garbage)
                assert said(connection)["refused"] == "ask_malformed"
        with connected(tmp_path):
            pass
        monkeypatch.setattr(control_socket, "REQUEST_S", 600.0)
        silent = [connected(tmp_path) for _ in range(MAX_ASKERS)]
        for nth in range(2):
            with connected(tmp_path) as connection:
                connection.sendall(REQUEST.line())
                assert said(connection) == {"done": 1}
            assert silent[nth].recv(1) == b""
            while outcomes.count("ask_malformed") + outcomes.count("gone") < 5 + nth:
                time.sleep(0.01)
            silent.append(connected(tmp_path))
        for each in silent:
            each.close()


def test_one_that_came_as_the_agent_ended_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came = threading.Event()

    class Slow(threading.Thread):
        def start(self) -> None:
            if self.name == "pyprof asked":
                came.set()
                time.sleep(0.1)
            super().start()

    door = ControlSocket(lambda request, asker: asker.say(done=1), lambda peer, outcome: None)
    door.begin(str(tmp_path), "")
    monkeypatch.setattr(threading, "Thread", Slow)
    with connected(tmp_path) as connection:
        assert came.wait(60)
        connection.sendall(REQUEST.line())
        door.close(time.monotonic() + 60)
        assert said(connection) == {"done": 1}


def test_asker_that_is_too_slow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "REQUEST_S", 0.05)
    with listening(tmp_path, lambda request, asker: asker.say(done=1)), connected(tmp_path) as connection:
        connection.sendall(b'{"service": ')
        assert said(connection)["refused"] == "ask_malformed"


def test_asker_that_takes_nothing_or_goes_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "_ANSWER_S", 0.05)
    gone = threading.Event()

    def answer(request: ControlRequest, asker: ControlClient) -> None:
        if request.rate == 1:
            while asker.wants_more(0.01):
                pass
            assert not asker.is_gone()
            asker.say(done=1)
        elif request.rate == 2:
            while not asker.is_gone():
                asker.wants_more(0.01)
            gone.set()
        else:
            asker.send(KEPT, bytes(1 << 24))

    with listening(tmp_path, answer) as outcomes:
        with connected(tmp_path) as connection:
            connection.sendall(replace(REQUEST, rate=1).line())
            connection.shutdown(socket.SHUT_WR)
            assert said(connection) == {"done": 1}
        with connected(tmp_path) as connection:
            connection.sendall(replace(REQUEST, rate=2).line())
        assert gone.wait(60)
        with connected(tmp_path) as connection:
            connection.sendall(REQUEST.line())
            while "gone" not in outcomes:
                time.sleep(0.01)


def served(service: str, start_s: int, length_s: int = 60) -> Profile:
    """Return a window that has one sample a second of one thread."""
    profile = golden()
    threads = (replace(profile.threads[0], labels=(("service", service),)),)
    return replace(
        profile,
        start_ns=start_s * 10**9,
        duration_ns=length_s * 10**9,
        threads=threads,
        time_ns=np.arange(start_s, start_s + length_s, dtype=np.int64) * 10**9,
        stack=profile.stack[:1].repeat(length_s),
        thread=np.zeros(length_s, np.int32),
        values=profile.values[:1].repeat(length_s, axis=0),
        state=None,
        cpu=None,
    )


def test_what_was_asked_for_follows_the_last_minutes_of_its_service_without_overlap() -> None:
    asked = served("web", 1000, 10)
    kept = [
        served("web", 300),  # before the requested span
        served("web", 380),  # overlaps the start of the span
        served("db", 880),
        served("web", 900, 30),  # the current window when the recording began
        served("web", 900, 60),  # the same window once it was complete
        served("web", 960, 60),  # a window that ended during the recording
        replace(served("web", 700), value_types=asked.value_types[:1]),
    ]
    (thread,) = asked.threads
    later = replace(thread, started=thread.started + 900, process_started=thread.process_started + 900)
    asked = replace(asked, threads=(later,))
    found = joined(kept, asked, "web", 600.0)
    seconds = (found.time_ns // 10**9).tolist()
    assert seconds == [*range(400, 440), *range(900, 1010)]
    assert (found.start_ns, found.duration_ns, found.title) == (400 * 10**9, 610 * 10**9, "web")
    assert [dict(each.labels)["service"] for each in found.threads] == ["web"], "its start was seen twice, it is one"
    other = replace(asked, threads=(replace(thread, started=thread.started + 10**9),))
    assert len(joined(kept, other, "web", 600.0).threads) == 2
    assert joined([], asked, "web", 600.0).time_ns.tolist() == asked.time_ns.tolist()


def test_last_minutes_are_kept_in_files_and_within_their_limits(tmp_path: Path) -> None:
    minutes = LastMinutes(str(tmp_path), 600.0, 1 << 30, Diagnostics())
    minutes.open()
    assert all(minutes.store_window(served("web", 60 * at)) for at in range(3))
    files = minutes.files()
    assert len(files) == 3
    assert minutes.bytes() == sum(Path(path).stat().st_size for path in files)
    (tmp_path / FOLDER / ".pyprof-00.part").write_text("what a killed agent was writing")
    os.utime(files[0], (1, 1))
    diagnostics = Diagnostics()
    small = LastMinutes(str(tmp_path), 600.0, minutes.bytes() * 3 // 4, diagnostics)
    small.open()
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {Path(path).name for path in files}
    assert small.store_window(served("web", 240))
    assert [path in small.files() for path in files] == [False, False, True]
    assert small.clear() > 1000
    assert (small.files(), small.bytes()) == ([], 0)
    (tmp_path / FOLDER).rmdir()
    assert not small.store_window(served("web", 300))
    assert small.files() == []
    assert diagnostics.counts == {NOT_KEPT: 1}


def test_what_somebody_asked_for_is_not_held_against_the_budget() -> None:
    governor = Governor(CostBudget(every_s=60.0), 0.0, 0.0)
    governor.exclude_cost(100.0)
    for now in range(1, 100 + round(SETTLING * 60)):
        assert governor.check_cost(now, now, lambda: 0) is BudgetVerdict.NOTHING
    spent = 100.0 + SETTLING * 60
    assert governor.check_cost(spent + 5, 2 * spent, lambda: 0) is BudgetVerdict.LESS


def test_service_is_recorded_in_a_mode_of_its_rule_and_not_by_too_many() -> None:
    config = parse_config(f'[[rule]]\nuser = "{os.getuid()}"\nservice = "all"\nmodes = ["cpu", "wall"]\n', "x")
    table = ProcessTable(config.rules, -1)
    assert [choice_of(table, ControlRequest("all", 1, 10, mode)).mode for mode in ("", "cpu", "wall")] == [
        "cpu",
        "cpu",
        "wall",
    ]
    for request, why in (
        (ControlRequest("all", 1, 10, "offcpu"), "in the mode cpu, wall"),
        (REQUEST, "services are: all"),
    ):
        with pytest.raises(ControlRefused, match=why) as caught:
            choice_of(table, request)
        assert caught.value.reason == "ask_no_service"
    now = RecordedNow(config.values, table, ())
    minutes = LastMinutes("/nowhere", 600.0, 1 << 30, Diagnostics())
    demand = OnDemand(lambda: now, minutes)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asker = ControlClient(ours, peer_of(ours))
        for _ in range(MAX_AT_ONCE):
            with pytest.raises(ControlRefused, match="services are: all"):
                demand.answer(REQUEST, asker)
        demand._room = threading.Semaphore(0)
        with pytest.raises(ControlRefused) as busy:
            demand.answer(REQUEST, asker)
        demand.end()
        with pytest.raises(ControlRefused) as ends:
            demand.answer(REQUEST, asker)
    assert (busy.value.reason, ends.value.reason, demand.under_way) == ("ask_busy", "ask_agent_ends", 0)
