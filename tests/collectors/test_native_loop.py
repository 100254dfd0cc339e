"""Tests of sampling rounds in machine code: results equal those in Python, which handles the unusual cases."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyprof.collectors.linux import libc, procfs
from pyprof.collectors.native import sampling_loop_bindings
from pyprof.collectors.native.sampling_loop_bindings import EXTRAS_SIZE, ReturnReason, Rounds, SampleRow, StopEnding
from pyprof.collectors.ptrace import compiled_sampling_rounds
from pyprof.collectors.ptrace.compiled_sampling_rounds import NativeRounds
from pyprof.collectors.ptrace.native_sampling_data import Round, StopReads
from pyprof.collectors.ptrace.running_threads import OnCpuTurns
from pyprof.model.sample_batch import SampleKind
from pyprof.problem_counters import Diagnostics
from tests.collectors.conftest import Start
from tests.collectors.targets import Enough, Recording, collecting, feedback, record, stops

pytestmark = [pytest.mark.live, pytest.mark.system]

Child = Callable[[list[str]], subprocess.Popen[bytes]]
KEPT = {"rbx": 0x10, "r12": 0x30, "r13": 0x40, "r14": 0x50, "r15": 0x60}
"""Values that c_registers keeps in these registers, as the byte that is repeated."""


@dataclass
class Calls:
    """Counters of calls of the machine code.

    Attributes:
        why: Number of returns by reason.
        endings: Number of stops by ending.
        rounds: Total number of rounds.
        most: Maximum number of rounds in one call.
    """

    why: Counter[ReturnReason] = field(default_factory=Counter)
    endings: Counter[StopEnding] = field(default_factory=Counter)
    rounds: int = 0
    most: int = 0

    @property
    def count(self) -> int:
        return self.why.total()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    seen = Calls()
    call = NativeRounds._call

    def watched(self: NativeRounds) -> None:
        before, stopped = self._rounds.rounds, self._rounds.samples_count
        call(self)
        seen.why[ReturnReason(self._rounds.why)] += 1
        seen.rounds += self._rounds.rounds - before
        seen.most = max(seen.most, self._rounds.rounds - before)
        seen.endings.update(
            StopEnding(self._rows.samples[n].ending) for n in range(stopped, self._rounds.samples_count)
        )

    monkeypatch.setattr(NativeRounds, "_call", watched)
    monkeypatch.setattr(OnCpuTurns, "start_visit", lambda *_: False)  # only the Python code visits processors
    return seen


def spinning(program: Start, enough: Enough) -> Recording:
    return record(program("c_registers").pid, enough, learn=feedback, rate_hz=500, flush_s=0.2)


def well_read(recording: Recording) -> list[int]:
    """Return the stopped samples, and assert that registers and stacks are those of the program."""
    lanes = recording.of(SampleKind.STOPPED)
    for lane in lanes:
        assert {name: lane.regs[name] for name in KEPT} == {
            name: int(f"{byte:x}" * 8, 16) for name, byte in KEPT.items()
        }
        assert lane.word(lane.regs["rsp"]) == 0x7070707070707070
        assert lane.base <= lane.regs["rsp"] - 128
    return [lane.time_ns for lane in lanes]


def test_rounds_come_without_python_between_them(program: Start, calls: Calls) -> None:
    recording = spinning(program, lambda _: calls.endings[StopEnding.TAKEN] > 200 and calls.most > 4)
    times = well_read(recording)
    assert calls.endings[StopEnding.TAKEN] > 200
    assert calls.most > 4
    assert times == sorted(times)
    stats = recording.stats
    assert stats is not None
    assert len(stats.pauses) == len(times)
    (account,) = stats.accounts.values()
    assert 0.6 < account.seen_ns / account.spent_ns < 1.6  # a busy machine increases it, also without machine code


def test_rounds_end_where_other_threads_may_want_the_interpreter(
    program: Start, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "_readv", libc._libc.process_vm_readv)
    assert well_read(spinning(program, lambda _: calls.endings[StopEnding.TAKEN] > 50))
    assert calls.endings[StopEnding.TAKEN] > 50
    assert calls.most == 1


def test_without_machine_code_the_same_comes(program: Start, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_sampling_rounds, "sample_rounds", lambda with_gil: None)
    assert len(well_read(spinning(program, stops(100)))) >= 100
    assert calls.count == 0


def test_thread_that_is_in_a_system_call_is_left_to_python(child: Child, calls: Calls) -> None:
    target = child(["dd", "if=/dev/zero", "of=/dev/null", "bs=1"])
    recording = record(
        target.pid, lambda _: calls.endings[StopEnding.HELD] > 10 and calls.count > 100, rate_hz=1000, flush_s=0.1
    )
    assert calls.endings[StopEnding.HELD] > 10
    assert len(recording.of(SampleKind.STOPPED)) > 5


def test_thread_that_is_left_stopped_when_an_exception_comes_goes_on(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = child(["dd", "if=/dev/zero", "of=/dev/null", "bs=1"])
    find = sampling_loop_bindings.sample_rounds
    states: list[str] = []

    def breaking(with_gil: bool) -> Callable[[int], None]:
        call = find(with_gil)
        assert call is not None

        def broken(address: int) -> None:
            call(address)
            rounds = Rounds.from_address(address)
            last = rounds.samples + (rounds.samples_count - 1) * ctypes.sizeof(SampleRow)
            if rounds.why == ReturnReason.STOPPED and SampleRow.from_address(last).ending == StopEnding.HELD:
                states.append(procfs.read_state(target.pid, target.pid))
                raise KeyboardInterrupt

        return broken

    monkeypatch.setattr(compiled_sampling_rounds, "sample_rounds", breaking)
    with pytest.raises(KeyboardInterrupt):
        record(target.pid, stops(2000), rate_hz=1000, flush_s=0.1)
    assert states == ["tracing stop"]
    assert procfs.read_state(target.pid, target.pid) in ("running", "sleeping")


def test_thread_that_begins_is_found_at_the_next_sampling_time(program: Start, calls: Calls) -> None:
    target = program("c_births", "thread", "20000", "1")
    recording = record(target.pid, lambda _: calls.why[ReturnReason.CHANGED] > 3, rate_hz=1000, flush_s=0.1)
    assert calls.why[ReturnReason.CHANGED] > 3
    assert len({lane.tid for lane in recording.lanes}) > 3


def test_nothing_is_sampled_once_it_is_told_to_stop(program: Start, calls: Calls) -> None:
    """Stop the collector, most likely while machine code waits for a sampling time."""
    target = program("c_registers")
    told: list[int] = []

    def stop() -> None:
        collector.stop()
        told.append(time.monotonic_ns())

    times: list[int] = []
    with collecting(target.pid, Diagnostics(), rate_hz=200, flush_s=1.0) as collector:
        timer = threading.Timer(1.03, stop)
        timer.start()
        for batch in collector.batches():
            times += batch.time_ns.tolist()
        timer.join()
    assert calls.rounds > 20
    assert len(times) > 5
    assert sum(at > told[0] for at in times) <= 1  # the current round may complete


@pytest.mark.parametrize(("stopping", "goes_on"), [(0, True), (1, False)])
def test_sampling_time_that_has_come_is_not_asked_for_once_sampling_has_stopped(stopping: int, goes_on: bool) -> None:
    """Stop at a due sampling time.

    The machine code then makes no round, so a request for one would repeat endlessly.
    """
    rounds = NativeRounds.__new__(NativeRounds)
    rounds._rounds = Rounds(due=0)
    rounds._rows = SimpleNamespace(stop=SimpleNamespace(value=stopping))  # type: ignore[assignment]
    rounds._undecoded = [SimpleNamespace()]  # type: ignore[list-item]
    come = Round((time.monotonic_ns(), time.monotonic_ns()), [])
    assert rounds._decode_until([come]) == goes_on


def test_sleepers_are_no_samples_and_cost_no_stop(program: Start, calls: Calls) -> None:
    target = program("c_spin", "1")
    recording = record(target.pid, lambda _: calls.endings[StopEnding.TAKEN] > 60, rate_hz=500, flush_s=0.2)
    assert {lane.tid for lane in recording.lanes} == set(procfs.list_tasks(target.pid)) - {target.pid}
    assert calls.endings[StopEnding.TAKEN] > 60


def was_read(parts: dict[int, bytes], first: bytes) -> StopReads:
    rows, data, offset = b"", b"", len(first) + EXTRAS_SIZE
    for avma, part in parts.items():
        rows += b"".join(word.to_bytes(8, "little") for word in (avma, len(part), offset + len(data)))
        data += part
    extras = (len(parts).to_bytes(8, "little") + rows).ljust(EXTRAS_SIZE, b"\0")
    return StopReads(memoryview(b"before" + first + extras + data), len(b"before"), len(first))


@pytest.mark.parametrize(
    ("spans", "given"),
    [
        ([(64, 8)], b"B" * 8),
        ([(64, 8), (128, 16)], b"B" * 8 + b"C" * 16),
        ([(64, 8), (72, 8), (128, 16)], b"B" * 8),  # a read ends at the first unreadable range
        ([(128, 24)], b""),
        ([], b""),
    ],
)
def test_what_was_read_is_given_and_nothing_else(spans: list[tuple[int, int]], given: bytes) -> None:
    gather = was_read({64: b"B" * 8, 128: b"C" * 16}, b"first of all")
    assert bytes(gather([(0, 99)])) == b"first of all"
    assert bytes(gather(spans)) == given
    assert bytes(gather([(64, 8)])) == b"B" * 8


def test_code_that_may_not_be_loaded_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find: Callable[[bool], object] = sampling_loop_bindings.sample_rounds.__wrapped__
    assert find(True) is not None
    monkeypatch.setattr(sampling_loop_bindings, "__file__", str(tmp_path / "code.py"))
    assert find(True) is None
