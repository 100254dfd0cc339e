"""What of a profile is shown: which native frames stand beside an interpreter's, and whose samples.

A pure function of a profile: frames that are not shown are taken out of the tree, no sample is dropped for them. Stacks
without an interpreter's frame are native threads and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pyprof.model.interpreter import SampleState
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.options import ViewOptions

_ENTRY = "_start"
"""The C library's, in every program: it stays, so that all stacks have one root."""
_OWN = re.compile(r"(lib)?python\d(\.\d+)?[a-z]*(\.so[.\d]*)?$|python$")


def view(profile: Profile, options: ViewOptions, own_modules: frozenset[str]) -> Profile:
    """own_modules: paths of modules that hold an interpreter."""
    if options.lock_holder and profile.state is not None:
        profile = _of_holders(profile)
    if options.native == "all" or not any(frame.kind == FrameKind.INTERPRETER for frame in profile.frames):
        return profile
    if options.native == "none":
        return _without(profile, lambda frame: frame.kind in (FrameKind.NATIVE, FrameKind.INLINE, FrameKind.KERNEL))
    own = [info.path in own_modules or bool(_OWN.match(info.name)) for info in profile.modules]

    def is_own(frame: Frame) -> bool:
        inside = frame.kind == FrameKind.NATIVE and frame.module >= 0 and own[frame.module]
        return inside and frame.title != _ENTRY

    return _without(profile, is_own)


def _of_holders(profile: Profile) -> Profile:
    """Only samples whose thread held its interpreter's lock."""
    assert profile.state is not None
    kept = np.flatnonzero(profile.state & SampleState.HOLDS_LOCK)
    note = f"Only threads that held the GIL: {len(kept)} of {len(profile.stack)} samples."
    return replace(
        profile,
        time_ns=profile.time_ns[kept],
        stack=profile.stack[kept],
        thread=profile.thread[kept],
        values=profile.values[kept],
        state=profile.state[kept],
        summary=replace(profile.summary, notes=(*profile.summary.notes, note)),
    )


def _without(profile: Profile, hidden: Callable[[Frame], bool]) -> Profile:
    hide = [hidden(frame) for frame in profile.frames]
    of_interpreter = [frame.kind == FrameKind.INTERPRETER for frame in profile.frames]
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    new_parent, new_frame = [-1], [-1]
    children: dict[tuple[int, int], int] = {}

    def child(parent: int, frame: int) -> int:
        node = children.get((parent, frame))
        if node is None:
            node = children[parent, frame] = len(new_parent)
            new_parent.append(parent)
            new_frame.append(frame)
        return node

    shown, interpreted = [0], [False]
    for node in range(1, len(parents)):
        parent, frame = parents[node], frames[node]
        interpreted.append(interpreted[parent] or of_interpreter[frame])
        shown.append(shown[parent] if hide[frame] else child(shown[parent], frame))
    native = sorted({leaf for leaf in profile.stack.tolist() if not interpreted[leaf]})
    place = np.array(shown, np.int32)
    for leaf in native:
        path = []
        node = leaf
        while node > 0:
            path.append(frames[node])
            node = parents[node]
        at = 0
        for frame in reversed(path):
            at = child(at, frame)
        place[leaf] = at
    return replace(
        profile,
        parent=np.array(new_parent, np.int32),
        frame=np.array(new_frame, np.int32),
        stack=place[profile.stack],
    )
