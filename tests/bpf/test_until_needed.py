"""Native programs that were attached to: perf_events sample them until a stack is longer than they copy, then BPF."""

from __future__ import annotations

from pyprof.model.profile import Profile
from tests.live.support import recording as native
from tests.live.support.ladders import ladder

DEEP = ("main", *["down"] * 8000, "bottom")
BY_PROGRAM = "Sampled by a program in the kernel (BPF): the target was never stopped"


def test_thread_with_long_stacks_is_sampled_by_the_program_and_never_stopped() -> None:
    def late(profile: Profile) -> int:
        return sum(path[-len(DEEP) :] == DEEP for path in native.names(profile))

    with native.running(ladder("ladder_beside"), "spin", native.LIFE, native.LIFE, "8000") as program:
        profile = native.watched(program.pid, lambda profile: late(profile) > 50, rate=99)
    summary = profile.summary
    assert late(profile) > 50
    assert summary.stops.count == 0
    assert summary.ends == {"root": summary.samples}, "what perf_events cut is completed by later stacks"
    first, second = summary.notes
    assert first == BY_PROGRAM
    assert second.startswith("Until a thread had stacks that are longer than the kernel copies"), second


def test_where_none_is_longer_perf_events_go_on() -> None:
    with native.running(ladder("ladder_deep"), "spin", native.LIFE, "200") as program:
        profile = native.watched(program.pid, lambda profile: profile.summary.samples > 100, rate=499)
    assert profile.summary.samples > 100
    assert profile.summary.notes == ("Sampled by perf_events (cpu-clock): the target was never stopped",)


def test_what_a_function_keeps_below_its_stack_pointer_is_copied() -> None:
    with native.running(ladder("ladder_red_zone"), "spin", native.LIFE) as program:
        profile = native.watched(program.pid, lambda profile: profile.summary.samples > 100, collector="bpf", rate=199)
    found = native.names(profile)
    assert len(found) > 100
    assert all(path[-3:] == ("main", "outer", "leaf") for path in found), found
    assert profile.summary.ends == {"root": profile.summary.samples}
