"""Tests of the order of messages between worker and sampler: feedback of walks must not come late."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NoReturn, cast

import numpy as np
import pytest

from pyprof.collectors import registry
from pyprof.collectors.base import CollectorStats
from pyprof.errors import AccessDenied
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import RecordOptions, TargetOptions, UnwindOptions, ViewOptions
from pyprof.session import recording_factory
from pyprof.session.pipeline.interpreter_readers import InterpreterNews
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.worker import response_codec
from pyprof.session.worker.deadline import AT_ONCE, SIGNAL, UNWOUND_S, WorkDeadline
from pyprof.session.worker.file_broker_client import FileBrokerClient
from pyprof.session.worker.message_channel import Channel, Closed, Received
from pyprof.session.worker.messages import Batch, Begin, NamingOptions, ProcessUpdate, ProfileRequest
from pyprof.session.worker.response_codec import BatchTaken, RequestFailed
from pyprof.session.worker.worker_loop import Service
from pyprof.session.worker.worker_process import Worker, forked

NOTHING = np.zeros(0, np.uint64)
BATCH = Batch(7, cast("SampleBatch", ()), ProcessUpdate(), cast("InterpreterNews", None))


class Observed:
    failed = False

    def unwind_batch(self, message: Batch) -> BatchTaken:
        return BatchTaken(message.number, NOTHING, NOTHING, np.zeros(0, np.bool_), look=False)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


def said(sampler: Channel) -> BatchTaken | RequestFailed | None:
    received = sampler.receive(0)
    return cast("BatchTaken | RequestFailed", response_codec.unpack(received.parts)) if received else None


def test_batch_is_answered_before_it_goes_to_the_journal_whose_errors_are_told(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, worker = ends
    service = Service(worker, cast("FileBrokerClient", None), WorkDeadline(), missing=())
    heard: list[object] = []

    def keep(observed: Observed) -> NoReturn:
        heard.append(said(sampler))
        raise OSError("the disk is full")

    monkeypatch.setattr(service, "_of", Observed())
    monkeypatch.setattr(service, "_keep", keep)
    service._take(BATCH)
    (answer,) = heard
    assert isinstance(answer, BatchTaken)
    assert answer.number == 7
    failure = said(sampler)
    assert isinstance(failure, RequestFailed)
    assert "disk is full" in str(failure.error)
    service._take(BATCH)
    assert isinstance(said(sampler), BatchTaken)  # an error is reported once, and each batch still has a response
    assert said(sampler) is None
    assert len(heard) == 1


def test_code_of_waiting_batches_is_read_before_an_earlier_one_is_unwound(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, worker = ends
    service = Service(worker, cast("FileBrokerClient", None), WorkDeadline(), missing=())
    done: list[object] = []

    class Reading(Observed):
        session = SimpleNamespace(
            code=SimpleNamespace(processes=SimpleNamespace(read_ahead=lambda batch: done.append(("read", batch))))
        )

        def unwind_batch(self, message: Batch) -> BatchTaken:
            done.append(("unwound", message.batch))
            return super().unwind_batch(message)

    def unpack(received: Received) -> Batch:
        return Batch(8, cast("SampleBatch", bytes(received.parts[0])), ProcessUpdate(), cast("InterpreterNews", None))

    monkeypatch.setattr(service, "_of", Reading())
    monkeypatch.setattr(service._unpacker, "unpack", unpack)
    monkeypatch.setattr(service, "_keep", lambda observed: None)
    for part in (b"one", b"two"):
        sampler.send([part])
    sampler.close()
    with pytest.raises(Closed):
        service._take(BATCH)
    assert done == [("read", b"one"), ("read", b"two"), ("unwound", ())]
    waiting: list[object] = [message.batch for message in service._waiting if isinstance(message, Batch)]
    assert waiting == [b"one", b"two"]


@pytest.mark.parametrize(("number", "innermost"), [(SIGNAL, False), (AT_ONCE, True)])
def test_received_batch_is_unwound_after_the_deadline_unless_end_is_immediate(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch, number: int, innermost: bool
) -> None:
    _, worker = ends
    deadline, heard = WorkDeadline(), list[str]()
    observed = Observed()
    monkeypatch.setattr(
        observed,
        "session",
        SimpleNamespace(recorder=SimpleNamespace(unwind_leaves_only=lambda: heard.append("now"))),
        raising=False,
    )
    service = Service(worker, cast("FileBrokerClient", None), deadline, missing=())
    monkeypatch.setattr(service, "_of", observed)
    deadline._on_deadline(number, None)
    service._take(BATCH)
    assert heard == ["now"] * innermost


@pytest.mark.parametrize(("number", "steps"), [(SIGNAL, ["symbols", "known"]), (AT_ONCE, ["known"])])
def test_symbol_tables_are_read_if_unwinding_took_all_the_time(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch, number: int, steps: list[str]
) -> None:
    _, worker = ends
    hurry, heard = WorkDeadline(), list[str]()

    def profile(*_: object, known_only: bool = False) -> NoReturn:
        heard.append("known" if known_only else "all")
        raise OSError("enough")

    observed = SimpleNamespace(
        profile=profile, ahead=SimpleNamespace(read_symbols=lambda window: heard.append("symbols"))
    )
    service = Service(worker, cast("FileBrokerClient", None), hurry, missing=())
    monkeypatch.setattr(service, "_of", observed)
    hurry._on_deadline(number, None)
    with pytest.raises(OSError, match="enough"):
        service._packed(
            cast("Window", None), cast("ProfileRequest", SimpleNamespace(state=0, extent=0, requested=True))
        )
    assert heard == steps


def test_slow_machine_gets_as_many_times_as_long_for_its_last_stacks(ends: tuple[Channel, Channel]) -> None:
    _, worker = ends
    begin = Begin(False, UnwindOptions(), NamingOptions("", 99, "cpu", ViewOptions()), CollectorStats(), 0, 0, times=4)
    deadline = WorkDeadline()
    Service(worker, cast("FileBrokerClient", None), deadline, missing=())._begin(begin)
    assert deadline.unwound_s == 4 * UNWOUND_S


def test_collector_opens_when_the_worker_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    ready: list[object] = []
    workers: list[Worker] = []

    def begun(confined: bool = True) -> Worker:
        workers.append(forked(confined))
        return workers[-1]

    def opened(*_: object) -> NoReturn:
        ready.append(said(workers[-1].channel))
        raise AccessDenied("enough")

    monkeypatch.setattr(registry, "open_collector", opened)
    with pytest.raises(AccessDenied, match="enough"):
        recording_factory.of_processes(TargetOptions(pids=(os.getppid(),)), RecordOptions(), begun)
    (answer,) = ready
    assert isinstance(answer, BatchTaken)
