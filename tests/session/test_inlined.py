"""Tests that functions inlined into the evaluator stand inside the interpreted function that called them."""

from __future__ import annotations

import numpy as np

from pyprof.model.profile import Frame, FrameKind, Line, Profile
from pyprof.model.summary import Summary
from pyprof.model.unwind_result import Trust
from pyprof.session.pipeline.profile_assembly import inlined_inside

NAMES = {"root": (), "eval": ("helper", "inner"), "py": (), "py2": (), "leaf": ()}


def frame(name: str) -> Frame:
    kind = FrameKind.INTERPRETER if name.startswith("py") else FrameKind.NATIVE
    lines = tuple(Line(each, each) for each in (*reversed(NAMES[name]), name))
    return Frame(kind, 1, 1, 1, -1, lines, Trust.EH_FRAME, name)


def profile(*stacks: str) -> Profile:
    """Return a profile of stacks, each given as names from root to leaf separated by spaces."""
    parents, frames, children = [-1], [-1], dict[tuple[int, int], int]()
    index = {name: n for n, name in enumerate(NAMES)}
    leaves = []
    for stack in stacks:
        node = 0
        for name in stack.split():
            key = (node, index[name])
            if key not in children:
                children[key] = len(parents)
                parents.append(node)
                frames.append(index[name])
            node = children[key]
        leaves.append(node)
    n = len(leaves)
    return Profile(
        value_types=(),
        period_ns=1,
        start_ns=0,
        duration_ns=1,
        title="",
        frames=tuple(frame(name) for name in NAMES),
        parent=np.array(parents, np.int32),
        frame=np.array(frames, np.int32),
        modules=(),
        threads=(),
        time_ns=np.zeros(n, np.int64),
        stack=np.array(leaves, np.int32),
        thread=np.zeros(n, np.int32),
        values=np.zeros((n, 0), np.int64),
        summary=Summary(),
    )


def shown(found: Profile) -> list[str]:
    """Return each sample's functions from root to leaf, with inlined ones in brackets."""
    stacks = []
    for node in found.stack.tolist():
        names: list[str] = []
        while node > 0:
            each = found.frames[found.frame[node]]
            own = [line.function for line in each.lines]
            names += [f"({name})" for name in own] if each.kind == FrameKind.INLINE else own
            node = int(found.parent[node])
        stacks.append(" ".join(reversed(names)))
    return stacks


def test_inlined_functions_follow_the_interpreter_s_frames() -> None:
    found = inlined_inside(profile("root eval py py2 leaf", "root eval py py2", "root eval py leaf"))
    assert shown(found) == [
        "root eval py py2 (helper) (inner) leaf",
        "root eval py py2 (helper) (inner)",
        "root eval py (helper) (inner) leaf",
    ]
    assert (found.parent[1:] < np.arange(1, len(found.parent))).all()


def test_the_same_frame_without_interpreted_ones_keeps_its_order() -> None:
    found = inlined_inside(profile("root eval leaf", "root eval py leaf", "root eval", "root eval py eval py2"))
    assert shown(found) == [
        "root eval (helper) (inner) leaf",
        "root eval py (helper) (inner) leaf",
        "root eval (helper) (inner)",
        "root eval py (helper) (inner) eval py2 (helper) (inner)",
    ]


def test_profile_without_such_frames_is_left_as_it_is() -> None:
    plain = profile("root leaf", "root eval leaf", "root py leaf")
    assert inlined_inside(plain) is plain
