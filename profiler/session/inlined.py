"""Functions inlined into a frame that runs an interpreter's frames: they stand inside those, which called them.

A frame's inlined functions are shown right inside it, and an interpreter's frames inside the frame that runs them.
Where there are both, the inlined function was called on behalf of the innermost interpreted one: the frame is taken
apart, and what was inlined into it follows the interpreter's frames.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pyprof.model.profile import Frame, FrameKind, Profile


def inlined_inside(profile: Profile) -> Profile:
    """The same profile with such frames taken apart; the same object where there are none."""
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    split = {
        parents[node]
        for node in range(1, len(parents))
        if profile.frames[frames[node]].kind == FrameKind.INTERPRETER and _has_inlined(profile, frames[parents[node]])
    }
    return _Tree(profile, split).rebuilt() if split else profile


def _has_inlined(profile: Profile, frame: int) -> bool:
    return frame >= 0 and profile.frames[frame].kind == FrameKind.NATIVE and len(profile.frames[frame].lines) > 1


class _Tree:
    """The tree anew. place: old node -> new one. inside: new node -> the frame that is still to come inside it."""

    def __init__(self, profile: Profile, split: set[int]) -> None:
        self._profile = profile
        self._split = split
        self._frames = list(profile.frames)
        self._parts: dict[int, tuple[int, int]] = {}
        self._parent, self._frame = [-1], [-1]
        self._inside: dict[int, int] = {}
        self._closed: dict[int, int] = {}

    def rebuilt(self) -> Profile:
        profile = self._profile
        place = [0]
        for node in range(1, len(profile.parent)):
            frame, parent = int(profile.frame[node]), place[int(profile.parent[node])]
            if profile.frames[frame].kind == FrameKind.INTERPRETER:
                new = self._add(parent, frame, self._inside.get(parent, -1))
            elif node in self._split:
                outer, inlined = self._taken_apart(frame)
                new = self._add(self._close(parent), outer, inlined)
            else:
                new = self._add(self._close(parent), frame, -1)
            place.append(new)
        leaves = {node: self._close(place[node]) for node in set(profile.stack.tolist())}
        return replace(
            profile,
            frames=tuple(self._frames),
            parent=np.array(self._parent, np.int32),
            frame=np.array(self._frame, np.int32),
            stack=np.array([leaves[node] for node in profile.stack.tolist()], np.int32),
        )

    def _add(self, parent: int, frame: int, inside: int) -> int:
        node = len(self._parent)
        self._parent.append(parent)
        self._frame.append(frame)
        if inside >= 0:
            self._inside[node] = inside
        return node

    def _close(self, node: int) -> int:
        """The node inside which something else than an interpreter's frame may stand."""
        inside = self._inside.get(node)
        if inside is None:
            return node
        if node not in self._closed:
            self._closed[node] = self._add(node, inside, -1)
        return self._closed[node]

    def _taken_apart(self, frame: int) -> tuple[int, int]:
        """The function itself and what was inlined into it, as frames of their own."""
        if frame not in self._parts:
            whole = self._profile.frames[frame]
            outer = replace(whole, lines=whole.lines[-1:])
            inlined: Frame = replace(
                whole, kind=FrameKind.INLINE, lines=whole.lines[:-1], title=whole.lines[-2].function
            )
            self._parts[frame] = len(self._frames), len(self._frames) + 1
            self._frames += [outer, inlined]
        return self._parts[frame]
