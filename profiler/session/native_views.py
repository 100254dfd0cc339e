"""Which native frames stand in stacks that have an interpreter's frames, by name of the view (options.NATIVE_VIEWS).

A view says of each node of the tree of stacks what stands in its place, as model.tree.rewrite() takes it. Views may
remember something of a node for those below it: parents come first. The tree may grow meanwhile. Frames of an
interpreter and markers always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from pyprof.model.profile import FrameKind
from pyprof.model.stacks import FrameKey, StackTable

IsOwn = Callable[[FrameKey], bool]
"""Is a frame in code of the interpreter itself?"""

Function = Callable[[int], Sequence[FrameKey]]
"""As rewrite() takes it."""


def extensions(stacks: StackTable, is_own: IsOwn) -> Function:
    """All but the interpreter's own. A stack's outermost frame stays, so that all stacks of a process have one root."""
    own: dict[int, bool] = {}

    def function(node: int) -> Sequence[FrameKey]:
        (key,) = stacks.key(node)
        frame = stacks.frame[node]
        if frame not in own:
            own[frame] = key.kind == FrameKind.NATIVE and is_own(key)
        return () if own[frame] and stacks.parent[node] else (key,)

    return function


def none(stacks: StackTable, _: IsOwn) -> Function:
    def function(node: int) -> Sequence[FrameKey]:
        (key,) = stacks.key(node)
        return () if in_code(key) else (key,)

    return function


class _Place(IntEnum):
    OUTSIDE = 0  # no interpreter's frame is further out
    CALLER = 1  # below an interpreter's frame, and nothing native is shown below that
    CALLED = 2  # in native code that an interpreter's function called


def calls(stacks: StackTable, is_own: IsOwn) -> Function:
    """Like extensions; of native code that an interpreter's function calls, only the function that it calls."""
    inner = extensions(stacks, is_own)
    places = {0: _Place.OUTSIDE}

    def function(node: int) -> Sequence[FrameKey]:
        place = places[stacks.parent[node]]
        (key,) = stacks.key(node)
        shown = inner(node)
        if key.kind == FrameKind.INTERPRETER:
            place = _Place.CALLER
        elif key.kind == FrameKind.NATIVE and shown and place != _Place.OUTSIDE:
            shown = shown if place == _Place.CALLER else ()
            place = _Place.CALLED
        places[node] = place
        return shown

    return function


def in_code(key: FrameKey) -> bool:
    """Neither an interpreter's frame nor a marker."""
    return key.kind not in (FrameKind.INTERPRETER, FrameKind.MARKER)


VIEWS: dict[str, Callable[[StackTable, IsOwn], Function]] = {
    "extensions": extensions,
    "calls": calls,
    "none": none,
}
"""All but "all", which changes nothing."""
