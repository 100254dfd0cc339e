"""Profiles whose stacks are written out one by one, made small enough for that: of stacks that are too deep the middle
is left out, and a marker stands there. A recursion 200,000 deep in 500 samples would be a file of gigabytes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pyprof.model.markers import LEFT_OUT, LEFT_OUT_TITLE
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.walk import Trust

MOST_FRAMES = 24_000_000
"""Of all stacks of a file."""
_LEAST_KEPT = 256


def bounded(profile: Profile, stacks: npt.NDArray[np.int32], most: int = MOST_FRAMES) -> Profile:
    """The profile with so few frames a stack that all of them are not more than `most`. stacks: the leaf of each stack
    that is written out.
    """
    depth = _depths(profile)
    if int(depth[stacks].sum()) <= most:
        return profile
    half = max(most // len(stacks), _LEAST_KEPT) // 2
    return _Shorter(profile, depth, half).profile()


def distinct_stacks(profile: Profile) -> npt.NDArray[np.int32]:
    """The leaves of what `Profile.totals` gives."""
    pairs = np.unique(profile.thread.astype(np.int64) << 32 | profile.stack)
    return (pairs & 0xFFFFFFFF).astype(np.int32)


def _depths(profile: Profile) -> npt.NDArray[np.int64]:
    """Frames of the stack that ends at each node."""
    depth = [0] * len(profile.parent)
    for node, parent in enumerate(profile.parent.tolist()):
        if node:
            depth[node] = depth[parent] + 1
    return np.array(depth, np.int64)


class _Shorter:
    """Keeps the outermost and the innermost `half` frames of each stack."""

    def __init__(self, profile: Profile, depth: npt.NDArray[np.int64], half: int) -> None:
        self._profile = profile
        self._depth = depth
        self._half = half
        self._marker = len(profile.frames)
        self._parent = [-1]
        self._frame = [-1]
        self._children: dict[tuple[int, int], int] = {}
        self._known: dict[int, int] = {0: 0}
        self._old_parent, self._old_frame = profile.parent.tolist(), profile.frame.tolist()

    def profile(self) -> Profile:
        outer = self._outer()
        place = np.zeros(len(self._old_parent), np.int32)
        for leaf in np.unique(self._profile.stack).tolist():
            place[leaf] = self._short(leaf, outer) if self._depth[leaf] > 2 * self._half else self._whole(leaf)
        frames = (
            *self._profile.frames,
            Frame(FrameKind.MARKER, LEFT_OUT, 0, 0, -1, (), Trust.CONTEXT, LEFT_OUT_TITLE),
        )
        parent, frame = np.array(self._parent, np.int32), np.array(self._frame, np.int32)
        return replace(self._profile, frames=frames, parent=parent, frame=frame, stack=place[self._profile.stack])

    def _outer(self) -> list[int]:
        """Of each node the one on its stack that is the outermost part's last."""
        found = [0] * len(self._old_parent)
        for node, parent in enumerate(self._old_parent):
            if node:
                found[node] = node if self._depth[node] <= self._half else found[parent]
        return found

    def _child(self, parent: int, frame: int) -> int:
        node = self._children.setdefault((parent, frame), len(self._parent))
        if node == len(self._parent):
            self._parent.append(parent)
            self._frame.append(frame)
        return node

    def _whole(self, leaf: int) -> int:
        """The new node of an old stack."""
        path, node = [], leaf
        while node not in self._known:
            path.append(node)
            node = self._old_parent[node]
        at = self._known[node]
        for node in reversed(path):
            at = self._known[node] = self._child(at, self._old_frame[node])
        return at

    def _short(self, leaf: int, outer: list[int]) -> int:
        path, node = [], leaf
        for _ in range(self._half):
            path.append(self._old_frame[node])
            node = self._old_parent[node]
        at = self._child(self._whole(outer[leaf]), self._marker)
        for frame in reversed(path):
            at = self._child(at, frame)
        return at
