"""Tests of the combined collector with simulated sources: when the main source changes, and what its results become.

No test needs rights or a target.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.base import CollectorRefused, CollectorStats, Feedback, Pauses
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.combined import planner as planning
from pyprof.collectors.combined.open_sources import MainSource, sum_stats
from pyprof.collectors.combined.planner import Planner
from pyprof.collectors.combined.source_switching_collector import CombinedCollector
from pyprof.collectors.cpu_time_accounting import Account, TotalTimes
from pyprof.collectors.perf.event_attributes import MOST_STACK
from pyprof.collectors.perf.kernel_collector import NEVER_STOPPED
from pyprof.collectors.sampling_source_plan import Choice, PlanFacts
from pyprof.errors import AccessDenied, NoSuchProcess, PyprofError
from pyprof.lazy_dataclasses import replace
from pyprof.model.arch import X86_64
from pyprof.model.loss_reason_texts import Note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

ROOT = PlanFacts("x86_64", (6, 12), 1 << 39 | 1 << 38)
USER = replace(ROOT, capabilities=0)
LEVEL2 = replace(USER, perf_user_only=True)
CPU, WALL = CollectOptions(), CollectOptions(idle=True)
NATIVE, PYTHON, STARTS = 1, 2, 3
INTERPRETERS = {NATIVE: "", PYTHON: "it runs CPython", STARTS: None}
BY_EVENTS, BY_BPF, BY_STOPS = Note("by_events"), Note("by_program"), Note("by_stops")
NOTES = {"perf": (BY_EVENTS, NEVER_STOPPED), "bpf": (BY_BPF,), "ptrace": (BY_STOPS,)}
MS = 1_000_000
FAR = 2 * MOST_STACK
"""Distance above the stack pointer, in bytes, that no kernel copy of the stack reaches."""


def sample(source_id: int) -> SampleBatch:
    """Return a batch with one sample of the main thread of this process."""
    one = np.ones(1, np.int64)
    return build_stackless_batch(X86_64, source_id, np.zeros(1, np.uint8), one, one * os.getpid(), one * os.getpid())


def feedback(batch: SampleBatch, missing: int = 0) -> Feedback:
    none = np.zeros(len(batch), np.uint64)
    return Feedback(batch, none, none + np.uint64(missing), none > 0)


class Source:
    """A simulated source of samples, which yields five batches unless it is ended before.

    Attributes:
        log: What happened to all sources of the recording, in order.
        births: Number of threads that were found. The first one misses all their time if `misses` is set.
    """

    refused: frozenset[int] = frozenset()
    most_copy = MOST_STACK
    has_processes_left = True
    flushed_ns = 0
    misses = False

    def __init__(self, name: str, source_id: int, log: list[str], alive: Iterable[int]) -> None:
        self.name, self.source_id, self.log = name, source_id, log
        self.source_ids = frozenset((source_id,))
        self.handover = FlushProtocol()
        self.records = self.samples = self.members = self.source = self.processes = self.accounts = self.waiting = self
        self.new: set[int] = set()
        self.alive = list(alive)
        self.heads = tuple(self.alive[:1])
        self.learned: list[SampleBatch] = []
        self.births = 0
        self.has_ended = False
        self.watch: Any = None
        self.batch_count = 5

    def batches(self) -> Iterator[SampleBatch]:
        for _ in range(self.batch_count):
            self.births += 1000
            if self.watch is not None:
                self.watch()
            if not self.has_ended:
                yield sample(self.source_id)

    def yield_until(self, until_ns: int = 0) -> Iterator[SampleBatch]:
        yield sample(self.source_id)

    def take_new_processes(self) -> set[int]:
        new, self.new = self.new, set()
        return new

    def follows_children(self, pid: int) -> bool:
        return True

    def find_interpreter(self, pid: int) -> str:
        return ""

    def totals(self) -> tuple[int, TotalTimes]:
        due_ns = self.births * MS * self.misses
        return self.births, TotalTimes(due_ns, 0, due_ns, 0)

    def learn(self, feedback: Feedback) -> None:
        self.learned.append(feedback.batch)

    def threads(self) -> list[ThreadInfo]:
        return [cast("ThreadInfo", SimpleNamespace(key=self.source_id))]

    def stats(self) -> CollectorStats:
        pauses = Pauses(np.ones(1, np.int64), 7) if self.name == "ptrace" else Pauses(np.zeros(1, np.int64))
        return CollectorStats(ticks=10, notes=NOTES[self.name], pauses=pauses)

    def end_now(self) -> None:
        self.log.append(f"end {self.name}")
        self.has_ended = True

    def stop(self) -> None:
        self.log.append(f"stop {self.name}")
        self.has_ended = True

    def close(self) -> None:
        self.log.append(f"close {self.name}")

    def __getattr__(self, name: str) -> Any:
        """Return a method without effect for each other name, such as leave_samples."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: None


class Recording:
    """A recording with simulated sources.

    Attributes:
        log: What happened to the sources, in order.
        sources: The main sources, in order.
        opened: Names and processes of main sources, in order of the attempts to open them.
        stops: The sources of partial stops.
    """

    def __init__(
        self,
        facts: PlanFacts,
        options: CollectOptions = CPU,
        errors: dict[str, PyprofError] | None = None,
        alive: Iterable[int] = (NATIVE,),
    ) -> None:
        self.log: list[str] = []
        self.sources: list[Source] = []
        self.opened: list[tuple[str, tuple[int, ...], str]] = []
        self.stops: list[Source] = []
        self.alive = tuple(alive)
        self._errors = errors or {}
        self.planner = Planner(facts, options, find_interpreter=INTERPRETERS.__getitem__)
        choice = self.planner.choose_first(self.alive)
        self.collector = CombinedCollector(
            self.planner, choice, self.alive, self._open_main, cast("Any", self._open_stops)
        )

    def _open_main(self, choice: Choice, pids: tuple[int, ...], launched: bool) -> MainSource:
        self.opened.append((choice.source, pids, choice.why))
        if self.sources and choice.source in self._errors:
            raise self._errors[choice.source]
        self.log.append(f"open {choice.source}")
        self.sources.append(Source(choice.source, len(self.sources) + 1, self.log, self.alive))
        return cast("MainSource", self.sources[-1])

    def _open_stops(self, _: object) -> Source:
        self.stops.append(Source("ptrace", 100 + len(self.stops), self.log, ()))
        return self.stops[-1]

    def run(self) -> list[int]:
        """Return the source of each batch until the recording ends."""
        return [batch.source_id for batch in self.collector.batches()]

    def run_with_new(self, pid: int) -> list[int]:
        """Return the source of each batch. The process appears after the first one."""
        batches = self.collector.batches()
        first = next(batches)
        self.sources[0].new = {pid}
        return [first.source_id, *(batch.source_id for batch in batches)]


@pytest.fixture(autouse=True)
def no_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_find_error_of_stops", lambda pid: None)


@pytest.mark.parametrize(("pid", "why"), [(PYTHON, "it runs CPython"), (STARTS, "")])
def test_interpreter_that_appears_moves_the_recording_to_bpf(pid: int, why: str) -> None:
    recording = Recording(ROOT)
    assert recording.run_with_new(pid) == [1, 2, 2, 2, 2, 2]
    assert recording.opened == [("perf", (NATIVE,), ""), ("bpf", (NATIVE,), why)]
    assert recording.log == ["open perf", "open bpf", "end perf", "close perf"]
    stats = recording.collector.stats()
    assert stats.ticks == 20
    assert [note.reason for note in stats.notes] == ["by_program", "until_interpreter"]
    assert [cast("int", info.key) for info in recording.collector.threads()] == [1, 2]


def test_interpreter_that_runs_already_has_bpf_from_the_start() -> None:
    recording = Recording(ROOT, alive=(NATIVE, PYTHON))
    assert recording.run() == [1] * 5
    assert recording.opened == [("bpf", (NATIVE, PYTHON), "it runs CPython")]
    assert recording.collector.stats().notes == (BY_BPF,)


def test_refused_bpf_is_tried_once_and_the_interpreter_is_stopped() -> None:
    recording = Recording(ROOT, errors={"bpf": CollectorRefused("the verifier says no")})
    batches = recording.collector.batches()
    next(batches)
    recording.sources[0].new = {PYTHON}
    assert 100 in [next(batches).source_id for _ in range(8)]
    assert recording.collector._open.partial.candidates.pids == (PYTHON,)
    assert [name for name, *_ in recording.opened] == ["perf", "bpf"]
    notes = recording.collector.stats().notes
    assert [note for note in notes if "the verifier says no" in note.text] == [notes[-1]]


def test_process_that_ends_meanwhile_refuses_nothing_and_is_checked_again() -> None:
    recording = Recording(ROOT, errors={"bpf": NoSuchProcess("gone")})
    assert recording.collector._open.find_stop_reason(PYTHON) is None
    assert recording.collector._open.find_stop_reason(PYTHON) is None
    assert [name for name, *_ in recording.opened] == ["perf", "bpf", "bpf"]
    assert recording.collector.stats().notes == NOTES["perf"]


@pytest.mark.parametrize("refused", [False, True])
def test_second_stack_changes_to_bpf_where_that_is_available(refused: bool) -> None:
    facts = replace(ROOT, refused={"bpf": CollectorRefused("no")}) if refused else ROOT
    recording = Recording(facts)
    assert recording.collector._open.follow_second_stack() is not refused
    assert [name for name, *_ in recording.opened] == ["perf", *([] if refused else ["bpf"])]


@pytest.mark.parametrize("options", [CPU, WALL])
def test_without_bpf_an_interpreter_is_stopped_alone_or_in_wall_mode_with_all(options: CollectOptions) -> None:
    recording = Recording(USER, options)
    assert recording.collector._open.find_stop_reason(NATIVE) == ""
    assert recording.collector._open.find_stop_reason(PYTHON) == ("it runs CPython" if options is CPU else "")
    assert [name for name, *_ in recording.opened] == ["perf", *(["ptrace"] if options is WALL else [])]


def test_wall_mode_changes_to_stops_of_all_when_an_interpreter_appears() -> None:
    recording = Recording(USER, WALL)
    assert recording.run_with_new(PYTHON) == [1, 2, 2, 2, 2, 2]
    assert recording.opened[1] == ("ptrace", (NATIVE,), "it runs CPython")
    assert [note.reason for note in recording.collector.stats().notes] == ["by_stops", "no_stops_needed"]


def test_wall_mode_goes_on_with_events_if_stops_are_refused() -> None:
    recording = Recording(USER, WALL, errors={"ptrace": AccessDenied("no")})
    assert recording.run_with_new(PYTHON) == [1] * 5
    assert len(recording.opened) == 2


def start_with_misses(errors: dict[str, PyprofError] | None = None, alive: Iterable[int] = (NATIVE,)) -> Recording:
    recording = Recording(LEVEL2, errors=errors, alive=alive)
    recording.sources[0].misses = True
    return recording


def test_events_follow_stops_that_miss_much() -> None:
    recording = start_with_misses(alive=(NATIVE, 4))
    INTERPRETERS[4] = ""
    assert recording.run() == [1, 2, 2, 2, 2, 2]
    assert [(name, pids) for name, pids, _ in recording.opened] == [("ptrace", (NATIVE, 4)), ("perf", (NATIVE,))]
    stats = recording.collector.stats()
    assert (stats.ticks, [note.reason for note in stats.notes]) == (20, ["by_events", "until_short_lives"])


@pytest.mark.parametrize("pid", [PYTHON, STARTS])
def test_stops_go_on_where_an_interpreter_needs_them(pid: int) -> None:
    recording = start_with_misses(alive=(NATIVE, pid))
    assert recording.run() == [1] * 5
    assert len(recording.opened) == 1


@pytest.mark.parametrize(("error", "attempts"), [(AccessDenied("no"), 1), (NoSuchProcess("gone"), 5)])
def test_stops_go_on_where_events_cannot_be_opened(error: PyprofError, attempts: int) -> None:
    recording = start_with_misses({"perf": error})
    assert recording.run() == [1] * 5
    assert len(recording.opened) == 1 + attempts
    assert recording.collector.stats().notes == (BY_STOPS,)


def test_recording_that_ends_during_a_change_begins_no_other_source() -> None:
    recording = Recording(ROOT)
    batches = recording.collector.batches()
    next(batches)
    recording.collector._open.find_stop_reason(PYTHON)
    recording.collector.stop()
    assert list(batches) == []
    recording.collector.close()
    assert recording.log[-2:] == ["close perf", "close bpf"]


def test_feedback_reaches_only_the_source_of_its_batch() -> None:
    recording = Recording(ROOT)
    batches = recording.collector.batches()
    first = next(batches)
    recording.collector._open.find_stop_reason(PYTHON)
    second = next(batches)
    for batch in (first, second):  # the first source is closed
        recording.collector.learn(feedback(batch))
    assert [[batch.source_id for batch in source.learned] for source in recording.sources] == [[], [2]]


def test_stops_learn_from_their_batch_though_one_of_perf_was_taken_after_it() -> None:
    recording = Recording(USER)
    perf = recording.sources[0]
    batches = recording.collector.batches()
    perf.batch_count = 1
    recording.collector.learn(feedback(next(batches), missing=FAR))  # from now on the thread is sampled by stops
    perf.learned.clear()
    assert next(batches).source_id == 1
    of_stops = next(batches)
    of_perf = next(batches)  # taken ahead of its feedback
    (stops,) = recording.stops
    assert (of_stops.source_id, of_perf.source_id) == (stops.source_id, 1)
    recording.collector.learn(feedback(of_stops))
    assert (stops.learned, perf.learned) == ([of_stops], [])
    recording.collector.learn(feedback(of_perf))
    assert len(stops.learned) == 1
    perf.has_processes_left = False
    list(batches)
    recording.collector.learn(feedback(of_stops))  # its source is closed
    assert len(stops.learned) == 1


def test_thread_that_was_chosen_and_not_stopped_is_not_said_to_have_been() -> None:
    recording = Recording(USER)
    recording.collector.learn(feedback(sample(1), missing=FAR))
    assert recording.collector._open.partial.candidates.threads == 1
    assert recording.collector.stats().notes == NOTES["perf"]


def test_accounts_of_a_process_continue_after_a_change() -> None:
    one, other = Account("one", 5, 6, 7), Account("other", 1, 2, 3)
    first, then = CollectorStats(accounts={1: one, 2: other}), CollectorStats(accounts={2: other, 3: one})
    found = sum_stats(first, then).accounts
    assert list(found) == [1, 2, 3]
    assert (found[1], found[3]) == (one, one)
    assert found[2] == other.followed_by(other)
