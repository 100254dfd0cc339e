"""Tests of the change from perf_events to BPF while a recording runs: when it happens, and what follows a refusal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from pyprof.collectors.base import Collector, CollectorRefused, CollectorStats
from pyprof.collectors.hybrid import planner
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.planner import Planner
from pyprof.collectors.hybrid.until_program import UntilProgram
from pyprof.collectors.plan import PlanFacts
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.options import CollectOptions
from pyprof.records import replace

ROOT = PlanFacts("x86_64", (6, 12), 1 << 39 | 1 << 38)
PYTHON, NATIVE, STARTS = 1, 2, 3
INTERPRETERS = {PYTHON: "it runs CPython", NATIVE: "", STARTS: None}


class Recording:
    """A recording by perf_events that may change to BPF.

    Attributes:
        opened: The processes and the reason of each attempt to open BPF.
        ended: True after the end of the collector that uses perf_events.
    """

    def __init__(self, error: PyprofError | None = None, facts: PlanFacts = ROOT) -> None:
        self.opened: list[tuple[list[int], str]] = []
        self.ended = False
        self._error = error
        self.planner = Planner(facts, CollectOptions(), find_interpreter=INTERPRETERS.__getitem__)
        self.collector = UntilProgram(self.planner, self._open_first, self._open_bpf)

    def _open_first(self, by_image: ByImage, instead: object) -> HybridCollector:
        self.by_image, self.instead = by_image, instead
        stats = lambda: CollectorStats(notes=("by events",))  # noqa: E731
        return cast("HybridCollector", SimpleNamespace(alive=[1, 2], end_now=self._end, stats=stats))

    def _end(self) -> None:
        self.ended = True

    def _open_bpf(self, alive: list[int], why: str) -> Collector:
        self.opened.append((alive, why))
        if self._error is not None:
            raise self._error
        return cast("Collector", SimpleNamespace())

    def check(self, pid: int) -> str | None:
        return self.by_image.needs_stops(pid)


@pytest.fixture(autouse=True)
def no_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_find_error_of_stops", lambda pid: None)


@pytest.mark.parametrize(("pid", "why"), [(PYTHON, "it runs CPython"), (STARTS, "")])
def test_interpreter_changes_the_recording_to_bpf_once(pid: int, why: str) -> None:
    recording = Recording()
    assert recording.check(NATIVE) == ""
    assert not recording.opened
    assert recording.check(pid) == ""
    assert recording.check(PYTHON) == ""
    assert recording.opened == [([1, 2], why)]
    assert recording.ended


def test_refused_program_is_tried_once_and_the_interpreter_is_stopped() -> None:
    recording = Recording(CollectorRefused("the verifier says no"))
    assert recording.check(STARTS) is None
    assert recording.check(PYTHON) == "it runs CPython"
    assert recording.check(NATIVE) == ""
    assert len(recording.opened) == 1
    assert not recording.ended
    notes = recording.collector.stats().notes
    assert [note for note in notes if "the verifier says no" in note] == [notes[-1]]


def test_process_that_ends_meanwhile_refuses_nothing_and_is_checked_again() -> None:
    recording = Recording(NoSuchProcess("gone"))
    assert recording.check(PYTHON) is None
    assert recording.check(PYTHON) is None
    assert len(recording.opened) == 2
    assert recording.collector.stats().notes == ("by events",)


@pytest.mark.parametrize("refused", [False, True])
def test_second_stack_changes_to_bpf_where_that_is_available(refused: bool) -> None:
    facts = replace(ROOT, refused={"bpf": CollectorRefused("no")}) if refused else ROOT
    recording = Recording(facts=facts)
    assert recording.collector._taken_for_second() is not refused
    assert len(recording.opened) == (not refused)
