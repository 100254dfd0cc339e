"""Tests of profile requests while the agent ends or is out of resources, and of clients of a hostile agent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import chdir
from pathlib import Path

import pytest

from pyprof.errors import PyprofError
from pyprof.fleet.agent import requested_recordings
from pyprof.fleet.agent.config import parse as parse_config
from pyprof.fleet.agent.control_socket import (
    ASKED,
    KEPT,
    MAX_ASKERS,
    NAME,
    ControlClient,
    ControlRequest,
    ControlResponse,
    peer_of,
)
from pyprof.fleet.agent.last_minutes import LastMinutes
from pyprof.fleet.agent.process_table import ProcessTable
from pyprof.fleet.agent.requested_recordings import OnDemand, RecordedNow
from pyprof.fleet.cli.agent_record import _AgentRequest
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from pyprof.problem_counters import Diagnostics
from pyprof.session import recording_factory
from tests.agent.test_control_protocol import REQUEST, connected, listening, said
from tests.cli.support import PYPROF
from tests.exporters.profiles import golden
from tests.exporters.support import export
from tests.hostile.test_endings import HANGS_S, endless, until


def test_while_all_are_answered_one_more_is_refused(tmp_path: Path) -> None:
    enough = threading.Event()

    def answer(request: ControlRequest, asker: ControlClient) -> None:
        asker.say(recording=1)
        enough.wait(60)

    with listening(tmp_path, answer):
        answered = [connected(tmp_path) for _ in range(MAX_ASKERS)]
        for each in answered:
            each.sendall(REQUEST.line())
            assert said(each) == {"recording": 1}
        with connected(tmp_path) as connection:
            assert said(connection)["refused"] == "ask_busy"
        enough.set()
        for each in answered:
            each.close()


def test_client_is_refused_without_memory_for_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(threading.Thread):
        def start(self) -> None:
            if self.name == "pyprof asked":
                raise RuntimeError("can't start new thread")
            super().start()

    with listening(tmp_path, lambda request, asker: asker.say(done=1)) as outcomes:
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Thread", Full)
            with connected(tmp_path) as connection:
                assert said(connection)["refused"] == "ask_busy"
        with connected(tmp_path) as connection:
            connection.sendall(REQUEST.line())
            assert said(connection) == {"done": 1}
    assert outcomes == ["ask_busy", "answered"]


def test_recording_that_was_asked_for_ends_with_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the agent while it records for a client: the recording stops at the next check of the client's connection."""
    config = parse_config(f'[[rule]]\nuser = "{os.getuid()}"\nservice = "all"\n', "x")
    now = RecordedNow(config.values, ProcessTable(config.rules, -1), ())
    demand = OnDemand(lambda: now, LastMinutes("/nowhere", 600.0, 1 << 30, Diagnostics()))
    done: list[str] = []

    class Recording:
        running = True
        failure = None

        def __enter__(self) -> Recording:
            return self

        def __exit__(self, *_: object) -> None:
            done.append("closed")

        def start(self) -> None:
            threading.Thread(target=asked).start()

        def end(self) -> None:
            done.append("ended")
            ours.shutdown(socket.SHUT_RD)  # otherwise the agent checks the connection only after a minute

        def stop(self) -> Profile:
            return golden()

    def asked() -> None:
        while not demand._recordings:
            time.sleep(0.01)
        demand.end()

    monkeypatch.setattr(recording_factory, "of_selection", lambda *_: Recording())
    monkeypatch.setattr(requested_recordings, "_LOOK_S", 60.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        demand.answer(replace(REQUEST, service="all"), ControlClient(ours, peer_of(ours)))
        ours.close()
        with theirs.makefile("rb") as answer:
            assert answer.read().endswith(b'{"done": 1}\n')
    assert done == ["ended", "closed"]
    assert not demand._recordings


def test_answer_of_small_files_with_many_samples_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = export("recording", golden())
    asking = _AgentRequest(REQUEST)
    asking._folder = str(tmp_path)
    given = [ControlResponse(KEPT, len(data), {}, data) for _ in range(3)]
    asked = ControlResponse(ASKED, len(data), {}, data)
    assert asking._joined(iter([*given, asked])).title == REQUEST.service
    monkeypatch.setattr("pyprof.fleet.cli.agent_record._MAX_ROWS", 2 * (len(golden().stack) + len(golden().parent)))
    with pytest.raises(PyprofError, match="too many samples"):
        asking._joined(iter([*given, asked]))


def test_client_refused_before_its_request_gets_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the client before its request arrives: the agent checks credentials first and closes the connection."""
    listener = socket.socket(socket.AF_UNIX)
    with chdir(tmp_path), listener:
        listener.bind(NAME)
        listener.listen()

        def line(_: ControlRequest) -> bytes:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"refused": "ask_not_allowed", "text": "Only some may ask."}\n')
            return b"{}\n"

        monkeypatch.setattr(ControlRequest, "line", line)
        monkeypatch.setattr("pyprof.fleet.cli.agent_record.listen", lambda _: None)
        with pytest.raises(PyprofError, match="Only some may ask"):
            _AgentRequest(REQUEST).profile(str(tmp_path))


def test_second_signal_ends_the_client_at_any_point(tmp_path: Path) -> None:
    """Send signals while the client reads a recording whose reader never returns."""
    begun = endless(tmp_path, "pyprof.recording.reader:load_recording")
    listener = socket.socket(socket.AF_UNIX)
    with chdir(tmp_path), listener:
        listener.bind(NAME)
        listener.listen()
        command = [*PYPROF, "agent", "record", "--service", "web", "--spool", str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as asking:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"asked": 1}\nx')
                until(begun.exists)
                asking.send_signal(signal.SIGINT)
                time.sleep(0.3)
                assert asking.poll() is None
                asking.send_signal(signal.SIGINT)
                _, words = asking.communicate(timeout=HANGS_S)
    assert asking.returncode == 130
    assert "nothing was written" in words
    assert not list(tmp_path.glob("pyprof-*"))
