"""Tests of what a profile leaves out of the stacks that were recorded."""

from __future__ import annotations

import numpy as np

from pyprof.model.prefix_tree import Tree
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.summary import Summary
from pyprof.model.unwind_result import Trust
from pyprof.session.pipeline.profile_assembly import without_tracepoint_frames

SLEEPING = "[sleeping: clock_nanosleep]"
# of `record --mode offcpu -k` next to a second one, kernel 6.18
SWITCH = ("main", "do_nanosleep", "schedule", "__schedule", "__traceiter_sched_switch", SLEEPING)
WAKER = ("main", "do_nanosleep", SLEEPING, "[woken by a (1)]", "futex_wake", "wake_up_q", "__traceiter_sched_waking")
IN_A_TRACER = ("main", "__schedule", "__traceiter_sched_switch", "bpf_trace_run4")


def frame(name: str) -> Frame:
    kind = FrameKind.NATIVE if name == "main" else FrameKind.KERNEL
    return Frame(kind, pc := 0 if name[0] == "[" else 1, pc, 0, -1, (), Trust.KERNEL, name)


def profile_of(*stacks: tuple[str, ...]) -> Profile:
    tree, names = Tree(), list(dict.fromkeys(name for stack in stacks for name in stack))
    leaves = [tree.add_path(map(names.index, stack))[-1] for stack in stacks]
    return Profile(
        value_types=(),
        period_ns=1,
        start_ns=0,
        duration_ns=1,
        title="",
        frames=tuple(map(frame, names)),
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        modules=(),
        threads=(),
        time_ns=np.zeros(len(leaves), np.int64),
        stack=np.array(leaves, np.int32),
        thread=np.zeros(len(leaves), np.int32),
        values=np.zeros((len(leaves), 0), np.int64),
        summary=Summary(),
    )


def stacks_of(profile: Profile) -> list[tuple[str, ...]]:
    found = []
    for node in profile.stack.tolist():
        names: list[str] = []
        while node > 0:
            names.append(profile.frames[profile.frame[node]].title)
            node = int(profile.parent[node])
        found.append(tuple(reversed(names)))
    return found


def test_switch_that_two_programs_trace_begins_in_the_scheduler() -> None:
    plain = (*SWITCH[:-2], SLEEPING)
    found = without_tracepoint_frames(profile_of(SWITCH, plain, WAKER))
    assert stacks_of(found) == [plain, plain, WAKER[:-1]]
    assert found.stack[0] == found.stack[1]


def test_time_inside_a_tracer_keeps_its_frames() -> None:
    found = without_tracepoint_frames(profile_of(IN_A_TRACER))
    assert stacks_of(found) == [IN_A_TRACER]


def test_profile_without_tracers_is_left_as_it_is() -> None:
    plain = profile_of(("main", "do_nanosleep", SLEEPING))
    assert without_tracepoint_frames(plain) is plain
