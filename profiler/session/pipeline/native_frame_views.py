"""Views: which native frames are shown in stacks that have interpreter frames (options.NATIVE_VIEWS).

A view maps each node of the stack tree to the frames that replace it, for model.columns.rewrite(). It sees parents
before their children, and may remember facts about a node for its children. The tree may grow in the meantime.
Interpreter frames and markers always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np

from pyprof.model.columns import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.stacks import FrameKey
from pyprof.records import dataclass, replace

Function = Callable[[int], Sequence[FrameKey]]
"""Function of a view of native frames for one tree, in the form that rewrite() expects."""


class _Kinded(Protocol):
    @property
    def kind(self) -> int: ...


_Key = TypeVar("_Key", bound=_Kinded)
_Shown = TypeVar("_Shown", bound=_Kinded, covariant=True)


class StackKeys(Protocol[_Shown]):
    """The protocol of a stack tree, as far as a view of native frames reads it. Trees of recordings and of profiles
    have it.

    Attributes:
        parent: Parent of each node. Node 0 is the root of all stacks.
        frame: Number of the frame of each node.
    """

    @property
    def parent(self) -> Sequence[int]: ...

    @property
    def frame(self) -> Sequence[int]: ...

    def key(self, node: int, /) -> tuple[_Shown]:
        """Return the frame of a node as a tuple of one element."""
        ...


class NativeView(Protocol):
    def __call__(
        self, stacks: StackKeys[_Key], is_own: Callable[[_Key], bool], is_function: Callable[[_Key], bool], /
    ) -> Callable[[int], Sequence[_Key]]:
        """Return the frames that replace each node of a stack tree.

        Args:
            stacks: The stack tree.
            is_own: Returns True if a frame lies in code of the interpreter itself.
            is_function: Returns True if a frame runs a function of the interpreted language.
        """
        ...


def extensions(
    stacks: StackKeys[_Key], is_own: Callable[[_Key], bool], _: Callable[[_Key], bool]
) -> Callable[[int], Sequence[_Key]]:
    """Make a view that shows all native frames except the interpreter's own.

    The outermost frame stays, so that all stacks of a process have one root.
    """
    own: dict[int, bool] = {}

    def function(node: int) -> Sequence[_Key]:
        (key,) = stacks.key(node)
        frame = stacks.frame[node]
        if frame not in own:
            own[frame] = key.kind == FrameKind.NATIVE and is_own(key)
        return () if own[frame] and stacks.parent[node] else (key,)

    return function


def none(
    stacks: StackKeys[_Key], _: Callable[[_Key], bool], is_function: Callable[[_Key], bool]
) -> Callable[[int], Sequence[_Key]]:
    def function(node: int) -> Sequence[_Key]:
        (key,) = stacks.key(node)
        return () if in_code(key) and not is_function(key) else (key,)

    return function


class _Place(IntEnum):
    OUTSIDE = 0  # no interpreter frame is further out
    CALLER = 1  # inside an interpreter frame, with no native frame shown between
    CALLED = 2  # in native code that an interpreter function called


def calls(
    stacks: StackKeys[_Key], is_own: Callable[[_Key], bool], is_function: Callable[[_Key], bool]
) -> Callable[[int], Sequence[_Key]]:
    """Make a view like extensions(), in which native code that an interpreter function calls is only its outermost
    function.
    """
    inner = extensions(stacks, is_own, is_function)
    places = {0: _Place.OUTSIDE}

    def function(node: int) -> Sequence[_Key]:
        place = places[stacks.parent[node]]
        (key,) = stacks.key(node)
        shown = inner(node)
        if is_function(key):
            place = _Place.CALLER
        elif key.kind == FrameKind.NATIVE and shown and place != _Place.OUTSIDE:
            shown = shown if place == _Place.CALLER else ()
            place = _Place.CALLED
        places[node] = place
        return shown

    return function


def in_code(key: _Kinded) -> bool:
    """Return True if a frame is a native or kernel frame: neither an interpreter frame nor a marker."""
    return key.kind not in (FrameKind.INTERPRETER, FrameKind.MARKER)


VIEWS: dict[str, NativeView] = {
    "extensions": extensions,
    "calls": calls,
    "none": none,
}
"""All views of native frames by name, except "all", which changes nothing."""


@dataclass(frozen=True, slots=True)
class _ProfileStacks:
    frames: Sequence[Frame]
    parent: Sequence[int]
    frame: Sequence[int]

    def key(self, node: int, /) -> tuple[Frame]:
        return (self.frames[self.frame[node]],)


def viewed(profile: Profile, name: str) -> Profile:
    """Return a profile with the native frames that a view shows.

    A view can only remove native frames. Each object file that contains an evaluator counts as the interpreter's own
    code.
    """
    if name not in VIEWS:
        return profile
    prefixes = tuple(prefix for language in profile.summary.languages for prefix in language.evaluators)
    own = {
        frame.module
        for frame in profile.frames
        if frame.module >= 0 and any(line.function.startswith(prefixes) for line in frame.lines)
    }
    stacks = _ProfileStacks(profile.frames, profile.parent.tolist(), profile.frame.tolist())
    shown = VIEWS[name](stacks, lambda frame: frame.module in own, is_interpreted)
    return with_frames(profile, lambda node: stacks.frame[node] if shown(node) else None)


def is_interpreted(frame: _Kinded) -> bool:
    """Return True if a frame is an interpreter frame."""
    return frame.kind == FrameKind.INTERPRETER


def with_frames(
    profile: Profile, shown: Callable[[int], int | None], is_interpreted: Callable[[Frame], bool] = is_interpreted
) -> Profile:
    """Replace or remove frames in stacks that have an interpreter frame. All other stacks stay.

    Args:
        profile: The profile.
        shown: Returns the frame that replaces the frame of a node, None to remove it. It is called in order of the
            nodes.
        is_interpreted: Returns True for an interpreter frame.
    """
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    interpreted, tree = [False], Tree()
    for node in range(1, len(parent)):
        found = is_interpreted(profile.frames[frame[node]])
        interpreted.append(found or interpreted[parent[node]])

    def function(node: int) -> Sequence[int]:
        at = shown(node)
        return () if at is None else (at,)

    place = rewrite(parent, function, tree)
    native = [leaf for leaf in np.unique(profile.stack).tolist() if not interpreted[leaf]]
    kept = rewrite(parent, lambda node: (frame[node],), tree, native)
    for leaf in native:
        place[leaf] = kept[leaf]
    return replace(
        profile,
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=np.array(place, np.int32)[profile.stack],
    )
