"""A profile by label: each value with its cost, or as the root of its stacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.model.compiler_command_lines import program_name
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo
from pyprof.model.sample_filter import selected
from pyprof.model.walk import Trust
from pyprof.records import replace

NONE = "(none)"
"""Label value of threads that lack the label."""


def value_of(thread: ThreadInfo, by: str) -> str:
    """Return a thread's value for "thread", "process", "pid", or the name of a label."""
    if by == "thread":
        return thread.name
    if by == "process":
        return program_name(thread.process)  # else each file of a build would be a separate series
    return str(thread.pid) if by == "pid" else dict(thread.labels).get(by, NONE)


def grouped(profile: Profile, by: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct values of a label, and the (n,) index of each sample's value."""
    values = list(dict.fromkeys(value_of(thread, by) for thread in profile.threads))
    place = {value: at for at, value in enumerate(values)}
    of_thread = np.array([place[value_of(thread, by)] for thread in profile.threads], np.int64)
    return values, of_thread[profile.thread] if len(values) else np.zeros(0, np.int64)


def parts(profile: Profile, by: str) -> list[tuple[str, Profile]]:
    """Return a separate profile for each value of a label, most expensive first."""
    values, group = grouped(profile, by)
    found = [(value, selected(profile, group == at)) for at, value in enumerate(values)]
    return sorted(found, key=lambda part: (-part[1].total, part[0]))


def rooted(profile: Profile, by: str) -> Profile:
    """Put each thread's value of a label as outermost frame into its stacks; the summary still describes the original
    stacks.
    """
    values, group = grouped(profile, by)
    tree, frame_of = Tree(), profile.frame.tolist()
    stack = np.zeros(len(profile.stack), np.int32)
    for at in range(len(values)):
        mine = group == at
        root = tree.child(0, len(profile.frames) + at)
        leaves: Sequence[int] = np.unique(profile.stack[mine]).tolist()
        place = rewrite(profile.parent.tolist(), lambda node: (frame_of[node],), tree, leaves, root)
        stack[mine] = np.array(place, np.int32)[profile.stack[mine]]
    roots = [Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, f"[{by}: {value}]") for value in values]
    return replace(
        profile,
        frames=(*profile.frames, *roots),
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=stack,
    )
