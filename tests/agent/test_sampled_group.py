"""Tests of one collector of the agent: a failure to start is reported and does not end the agent."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from pyprof.agent.config import parse
from pyprof.agent.group_recording import SampledGroup
from pyprof.agent.process_table import ProcessTable
from pyprof.agent.window_end_times import WindowClock
from pyprof.errors import AccessDenied
from pyprof.session import recording_factory
from pyprof.window_flush_protocol import Stride
from tests.hostile.test_endings import until


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "no room"), AccessDenied("not allowed", "")])
def test_recording_that_cannot_begin_is_said_and_tried_again_later(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail to start a recording, for example because the host cannot create another process.

    The agent keeps running and retries.
    """
    config = parse('[[rule]]\nname = "*"', "x")
    begun, said = [], []

    def fail(*_: object) -> None:
        begun.append(1)
        raise error

    monkeypatch.setattr(recording_factory, "of_selection", fail)
    table, (sampling,) = ProcessTable(config.rules, -1), config.samplings()
    group = SampledGroup(
        sampling,
        config.values,
        table,
        WindowClock(60),
        Stride(),
        lambda *_: None,
        lambda *_: True,
        lambda _, wrong, __: said.append(wrong),
    )
    for _ in range(3):
        group.tend()
        until(lambda: not group.running)
    assert os.getpid() in table.by_pid
    assert (begun, said) == ([1], [error])
    group.close()


def test_recording_that_is_still_opened_is_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse('[[rule]]\nname = "*"', "x")
    begun, enough = threading.Event(), threading.Event()

    def open_slowly(*_: object) -> Opened:
        begun.set()
        enough.wait(60)
        return Opened()

    class Opened:
        def close(self) -> None:
            closed.append(1)

    closed: list[int] = []
    monkeypatch.setattr(recording_factory, "of_selection", open_slowly)
    table, (sampling,) = ProcessTable(config.rules, -1), config.samplings()
    clock = WindowClock(60)
    group = SampledGroup(
        sampling, config.values, table, clock, Stride(), lambda *_: None, lambda *_: True, lambda *_: None
    )
    group.tend()
    assert begun.wait(60)
    group.finish()
    assert group.running
    assert not group.left.is_set()
    enough.set()
    until(lambda: not group.running)
    assert closed == [1]
