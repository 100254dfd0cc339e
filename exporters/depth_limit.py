"""A limit for the depth of stacks, for formats that write stacks one by one.

The middle of a stack that is too deep is replaced by a marker. Without the limit, a recursion 200,000 deep in 500
samples would become a file of gigabytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import replace
from pyprof.model.integer_array_operations import distinct
from pyprof.model.marker_frames import LEFT_OUT
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.unwind_result import Trust

MAX_FRAMES = 24_000_000
"""Maximum number of frames in all stacks of an exported file together."""
_MIN_KEPT = 256


def limit_stack_depth(profile: Profile, stacks: npt.NDArray[np.int32], max_frames: int = MAX_FRAMES) -> Profile:
    """Return the profile with the deepest stacks cut, so that all stacks together have at most `max_frames` frames.

    Args:
        stacks: Leaf node of each stack that the exporter will write.
    """
    depth = _depths(profile)
    if int(depth[stacks].sum()) <= max_frames:
        return profile
    half = max(max_frames // len(stacks), _MIN_KEPT) // 2
    return _shorter(profile, depth, half)


def distinct_stacks(profile: Profile) -> npt.NDArray[np.int32]:
    """Return the leaf node of each distinct stack of a profile."""
    return np.array([leaf for _, leaf, _ in profile.totals()], np.int32)


def _depths(profile: Profile) -> npt.NDArray[np.int64]:
    """Return for each node of the stack tree the number of frames from the root to it."""
    depth = [0] * len(profile.parent)
    for node, parent in enumerate(profile.parent.tolist()):
        if node:
            depth[node] = depth[parent] + 1
    return np.array(depth, np.int64)


def _shorter(profile: Profile, depth: npt.NDArray[np.int64], half: int) -> Profile:
    """Return a copy of the profile in which stacks of more than 2 * half frames are cut. Such a stack keeps its `half`
    outermost and its `half` innermost frames.
    """
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    leaves = distinct(profile.stack)
    deep = depth[leaves] > 2 * half
    outer = _outer(parent, depth, half)
    tree = Tree()
    kept = [*leaves[~deep].tolist(), *(outer[leaf] for leaf in leaves[deep].tolist())]
    place = rewrite(parent, lambda node: (frame[node],), tree, kept)
    short = np.array(place, np.int32)
    for leaf in leaves[deep].tolist():
        inner, node = [], leaf
        for _ in range(half):
            inner.append(frame[node])
            node = parent[node]
        at = tree.child(place[outer[leaf]], len(profile.frames))
        for each in reversed(inner):
            at = tree.child(at, each)
        short[leaf] = at
    marker = Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, LEFT_OUT.title, LEFT_OUT)
    return replace(
        profile,
        frames=(*profile.frames, marker),
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=short[profile.stack],
    )


def _outer(parent: list[int], depth: npt.NDArray[np.int64], half: int) -> list[int]:
    """Return for each node of the stack tree the last node of the outer part that a cut stack keeps: its ancestor
    `half` frames from the root. A node that is closer to the root is returned itself.
    """
    found = [0] * len(parent)
    for node in range(1, len(parent)):
        found[node] = node if depth[node] <= half else found[parent[node]]
    return found
