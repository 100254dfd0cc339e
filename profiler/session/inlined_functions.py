"""Places inlined functions of a native frame inside the interpreter frames that this frame runs.

Inlined functions are shown inside their frame, and so are the interpreter frames that an evaluator runs. In a frame
that has both, the innermost interpreter frame has called the inlined function. So the frame is split, and its inlined
functions follow the interpreter frames.
"""

from __future__ import annotations

import numpy as np

from pyprof.model.columns import distinct
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import FrameKind, Profile
from pyprof.records import replace


def inlined_inside(profile: Profile) -> Profile:
    """Split frames that have both inlined functions and interpreter frames inside them.

    Returns:
        The changed profile, or the same object if no frame was split.
    """
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    split = {
        parents[node]
        for node in range(1, len(parents))
        if profile.frames[frames[node]].kind == FrameKind.INTERPRETER and _has_inlined(profile, frames[parents[node]])
    }
    return _Split(profile, split).rebuilt() if split else profile


def _has_inlined(profile: Profile, frame: int) -> bool:
    return frame >= 0 and profile.frames[frame].kind == FrameKind.NATIVE and len(profile.frames[frame].lines) > 1


class _Split:
    """A splitter of frames with inlined functions, for some nodes of the stack tree.

    Args:
        profile: The profile.
        split: Nodes whose frames are split.
    """

    def __init__(self, profile: Profile, split: set[int]) -> None:
        self._profile = profile
        self._split = split
        self._parent, self._frame = profile.parent.tolist(), profile.frame.tolist()
        self._inside = [-1] * len(self._parent)
        self._parts: dict[int, tuple[int, int]] = {}
        self.frames = list(profile.frames)

    def rebuilt(self) -> Profile:
        tree = Tree()
        place = rewrite(self._parent, self._frames_of, tree)
        for leaf in distinct(self._profile.stack).tolist():
            if self._inside[leaf] >= 0:
                place[leaf] = tree.child(place[leaf], self._inside[leaf])
        return replace(
            self._profile,
            frames=tuple(self.frames),
            parent=np.array(tree.parent, np.int32),
            frame=np.array(tree.frame, np.int32),
            stack=np.array(place, np.int32)[self._profile.stack],
        )

    def _frames_of(self, node: int) -> list[int]:
        """Return the frames that replace a node of the stack tree, with inlined functions as separate frames."""
        frame, waiting = self._frame[node], self._inside[self._parent[node]]
        if self._profile.frames[frame].kind == FrameKind.INTERPRETER:
            self._inside[node] = waiting
            return [frame]
        before = [waiting] if waiting >= 0 else []
        if node in self._split:
            outer, self._inside[node] = self._taken_apart(frame)
            return [*before, outer]
        return [*before, frame]

    def _taken_apart(self, frame: int) -> tuple[int, int]:
        """Return two frames in place of one: the function, and the functions that were inlined into it."""
        if frame not in self._parts:
            whole = self._profile.frames[frame]
            outer = replace(whole, lines=whole.lines[-1:])
            inlined = replace(whole, kind=FrameKind.INLINE, lines=whole.lines[:-1], title=whole.lines[-2].function)
            self._parts[frame] = len(self.frames), len(self.frames) + 1
            self.frames += [outer, inlined]
        return self._parts[frame]
