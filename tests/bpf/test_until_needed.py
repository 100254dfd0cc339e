"""Tests of attaching to native programs.

Events of perf_event_open(2) sample them until a stack continues on another one, then BPF does.
"""

from __future__ import annotations

import pytest

from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Profile
from tests.live.support import recording as native
from tests.live.support.ladders import ladder

pytestmark = pytest.mark.system

WITH_ROOM = ("begin", "with_room", "r_01", "r_02", "r_03", "r_04", "r_top")
BY_PROGRAM = (make_note("by_program"), make_note("never_stopped"))


def test_handlers_on_sigaltstack_are_sampled_by_bpf_without_stops() -> None:
    def late(profile: Profile) -> int:
        return sum(path[-2:] == ("handler", "handler_top") and "s_01" in path for path in native.names(profile))

    with native.running(ladder("ladder_altstack"), "spin", native.LIFE) as program:
        profile = native.watched(program.pid, lambda profile: late(profile) > 20, rate=299)
    summary = profile.summary
    assert late(profile) > 20
    assert summary.stops.count == 0
    assert summary.notes[:2] == BY_PROGRAM  # a busy machine adds notes on unsampled time
    assert summary.notes[2].reason == "until_second_stack"


def test_frame_that_is_larger_than_a_copy_has_its_callers_and_nothing_is_stopped() -> None:
    def whole(profile: Profile) -> int:
        return sum(path[-7:] == WITH_ROOM for path in native.names(profile) if not path[0].startswith("["))

    with native.running(ladder("ladder_room"), "spin", native.LIFE) as program:
        profile = native.watched(program.pid, lambda profile: whole(profile) > 100, rate=499)
    assert whole(profile) > 100
    assert profile.summary.stops.count == 0
    assert profile.summary.notes[:2] == BY_PROGRAM


def test_where_none_does_perf_events_go_on() -> None:
    with native.running(ladder("ladder_deep"), "spin", native.LIFE, "200") as program:
        profile = native.watched(program.pid, lambda profile: profile.summary.samples > 100, rate=499)
    assert profile.summary.samples > 100
    assert profile.summary.notes[:2] == (make_note("by_events", event="cpu-clock"), make_note("never_stopped"))


def test_what_a_function_keeps_below_its_stack_pointer_is_copied() -> None:
    with native.running(ladder("ladder_red_zone"), "spin", native.LIFE) as program:
        profile = native.watched(program.pid, lambda profile: profile.summary.samples > 100, collector="bpf", rate=199)
    found = native.names(profile)
    assert len(found) > 100
    assert all(path[-3:] == ("main", "outer", "leaf") for path in found), found
    assert profile.summary.ends == {"root": profile.summary.samples}


def in_room(profile: Profile) -> list[tuple[str, ...]]:
    return [path for path in native.names(profile) if "r_top" in path]


def test_all_samples_have_the_callers_of_a_frame_that_is_larger_than_a_copy() -> None:
    with native.running(ladder("ladder_room"), "spin", native.LIFE) as program:
        profile = native.watched(program.pid, lambda profile: len(in_room(profile)) > 100, collector="bpf", rate=499)
    found = in_room(profile)
    assert len(found) > 100
    assert all(path[-7:] == WITH_ROOM for path in found), found
    assert profile.summary.stops.count == 0
