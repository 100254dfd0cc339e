"""Tests of numbers in the summary of any recording: parts add up to their total, and shares are between 0 and 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof.cli.number_and_name_format import percent
from pyprof.cli.terminal_summary import brief, report
from pyprof.collectors.base import CollectorStats, PauseLog
from pyprof.model.analysis.function_costs import costs
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Frame, FrameKind, Line, Profile
from pyprof.model.stacks import StackTable
from pyprof.model.summary import Shown, Summary, lacks
from pyprof.model.thread_identity import ThreadKey
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.profile_assembly import amounts, summarize
from pyprof.session.pipeline.sample_windows import Window
from tests.exporters.profiles import Builder, code, golden, marker

EVALUATOR = "_PyEval_EvalFrameDefault"
FRAMES = [
    code("_start"),
    code("main"),
    code("work"),
    replace(code(EVALUATOR), lines=(Line(EVALUATOR, EVALUATOR),)),
    Frame(FrameKind.INTERPRETER, 1, 1, 0, -1, (Line("f", "f", 0, "/app/f.py", 3),), Trust.INTERPRETER, "f"),
    Frame(FrameKind.KERNEL, 1, 1, 0, -1, (), Trust.KERNEL, "[sleeping: futex]"),
]
CUTS = [replace(marker(f"[{end.label}]"), pc=int(end)) for end in StackEnd if end > StackEnd.ROOT]
BROKEN = int(SampleState.INTERPRETED | SampleState.BROKEN_CHAIN)
STATES = st.sampled_from(
    [0, int(SampleState.INTERPRETED), int(SampleState.INTERPRETED | SampleState.HOLDS_LOCK), BROKEN]
)


@st.composite
def recordings(draw: st.DrawFn) -> tuple[Window, Profile]:
    """Generate a window of a recording and its profile."""
    builder = Builder()
    states = []
    for _ in range(draw(st.integers(0, 12))):
        cut = draw(st.lists(st.sampled_from(CUTS), max_size=1))
        stack = [*cut, *draw(st.lists(st.sampled_from(FRAMES), max_size=6))]
        builder.sample(builder.node(stack), 0, draw(st.integers(0, 5)), draw(st.integers(0, 2**40)))
        states.append(draw(STATES))
    profile = builder.build(state=np.array(states, np.int32))
    return _window(profile, draw(stats()), draw(stats()), draw(st.integers(0, 2**40))), profile


@st.composite
def stats(draw: st.DrawFn) -> CollectorStats:
    log = PauseLog()
    for ns in draw(st.lists(st.integers(0, 2**36), max_size=5)):
        log.add_pause(ns)
    return CollectorStats(draw(st.integers(0, 10**6)), log.snapshot(), 0, 0, 0, (make_note("by_program"),))


def _window(profile: Profile, before: CollectorStats, more: CollectorStats, duration_ns: int) -> Window:
    zeros = np.zeros(len(profile.stack), np.int64)
    after = replace(before, ticks=before.ticks + more.ticks, pauses=before.pauses + more.pauses)
    return Window(
        stacks=StackTable(),
        spaces={},
        threads=profile.threads,
        time_ns=profile.time_ns,
        node=profile.stack,
        thread=zeros.astype(np.int32),
        weight=zeros,
        length_ns=zeros,
        state=profile.state if profile.state is not None else zeros.astype(np.int32),
        start_ns=0,
        duration_ns=duration_ns,
        before=before,
        after=after,
        errors={},
        cpu=zeros.astype(np.int32),
        keys={0: ThreadKey(1, 1, 0)},
        labels=zeros.astype(np.int32),
        label_sets=((),),
    )


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(recordings())
def test_parts_of_a_summary_add_up_and_no_share_is_above_all(recording: tuple[Window, Profile]) -> None:
    window, profile = recording
    summary = summarize(window, profile, Diagnostics(), 99)
    total = int(profile.values[:, -1].sum())
    assert sum(summary.shown.ends.values()) == summary.shown.total == total
    assert sum(summary.ends.values()) == summary.samples == len(profile.stack)
    assert min([0, *summary.shown.ends.values(), *summary.ends.values(), *summary.trust.values()]) == 0
    assert 0 <= sum(missing.value for missing in summary.functions_missing) <= total
    for missing in summary.functions_missing:
        lacking = summary.shown.ends.get(lacks(missing.language), 0)
        assert 0 <= lacking <= (total if _has_interpreted(profile) else missing.value)
        assert missing.pids
    assert 0 <= summary.stops.share <= 1
    assert summary.rate_reached >= 0
    assert sum(module.own for module in summary.modules) <= total
    assert 0 <= sum(cost.own for cost in costs(profile).functions) <= total
    _has_no_share_beyond(replace(profile, summary=summary, duration_ns=window.duration_ns))


def _has_interpreted(profile: Profile) -> bool:
    """Return True if a sample has functions of an interpreter. Those before it lack them, but none are missing."""
    states = profile.state if profile.state is not None else np.zeros(1, np.int32)
    is_read = bool((states & SampleState.INTERPRETED).any())
    return is_read or any(frame.kind == FrameKind.INTERPRETER for frame in profile.frames)


def _has_no_share_beyond(profile: Profile) -> None:
    for text in [*report(profile, 80, True, True), brief(profile)]:
        assert "-" not in [word[:1] for word in text.split() if word[1:2].isdigit()], text
        words = text.replace("<", "").split()
        shares = [float(words[at - 1].lstrip("(")) for at, word in enumerate(words) if word.startswith("%") and at]
        assert all(0 <= share <= 100 for share in shares), text


@given(st.lists(st.tuples(STATES, st.integers(0, 2**40), st.sampled_from([(), (3,), (3, 4), (4,)])), min_size=1))
def test_stacks_that_lack_python_are_those_with_its_evaluator_that_nobody_read(
    samples: list[tuple[int, int, tuple[int, ...]]],
) -> None:
    builder = Builder()
    lacking = later = partly = 0
    is_read = False
    for state, value, inner in samples:
        builder.sample(builder.node([FRAMES[0], *(FRAMES[at] for at in inner)]), 0, 1, value)
        is_lacking = inner == (3,) and not state & SampleState.INTERPRETED
        is_read |= 4 in inner or bool(state & SampleState.INTERPRETED)
        lacking += value if is_lacking else 0
        later += value if is_lacking and is_read else 0
        partly += value if state == BROKEN else 0
    profile = builder.build(state=np.array([state for state, _, _ in samples], np.int32))
    empty = CollectorStats(0, PauseLog().snapshot(), 0, 0, 0, ())
    summary = summarize(_window(profile, empty, empty, 1), profile, Diagnostics(), 99)
    value = sum(missing.value for missing in summary.functions_missing if missing.language == "Python")
    assert value == (later if is_read else lacking), "without the start of a process whose functions are read"
    assert summary.shown.ends.get("no_python", 0) == lacking
    assert summary.shown.ends.get("partly_interpreted", 0) == partly


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 2**36), st.integers(1, 9)), max_size=30),
    st.integers(10**5, 10**9),
)
def test_lengths_become_as_many_samples_as_periods_lie_in_them(
    rows: list[tuple[int, int, int]], period_ns: int
) -> None:
    tid, length, weight = (np.array([row[column] for row in rows], np.int64) for column in range(3))
    empty = CollectorStats(0, PauseLog().snapshot(), 0, 0, 0, ())
    window = replace(
        _window(Builder().build(), empty, empty, 1), thread=tid.astype(np.int32), weight=weight, length_ns=length
    )
    samples, ns = amounts(window, period_ns).T
    assert (samples >= 0).all()
    assert (ns >= 0).all()
    assert int(ns.sum()) == sum(at if at >= 0 else times * period_ns for _, at, times in rows)
    for each in set(tid.tolist()):
        mine = (tid == each) & (length >= 0)
        assert abs(int(samples[mine].sum()) - int(length[mine].sum()) / period_ns) <= 0.5


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_percentages_of_anything_are_between_nothing_and_all(part: float, whole: float) -> None:
    said = percent(part, whole)
    share = float(said.removesuffix(" %").lstrip("<"))
    assert 0 <= share <= 100
    assert (share < 100) or part >= whole


def test_recording_without_any_waits_states_no_quality() -> None:
    profile = golden()
    waitless = replace(profile.summary, shown=Shown("offcpu", "nanoseconds", 0, {}))
    found = replace(profile, values=profile.values * 0, summary=waitless)
    assert not any("whole stacks" in text for text in report(found, 80, True, False))


def test_empty_summary_has_no_shares() -> None:
    assert Summary().shown.total == 0
    _has_no_share_beyond(Builder().build(summary=Summary()))
