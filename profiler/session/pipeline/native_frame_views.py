"""Selects the frames and samples of a recording that are shown: views of native frames, and the processes to show.

A view (options.NATIVE_VIEWS) chooses native frames in stacks that have interpreter frames. It maps each node of the
stack tree to the frames that replace it, for rewrite(). It sees parents before their children, and may remember facts
about a node for its children. The tree may grow in the meantime. Interpreter frames and markers always stay.

This happens before names are resolved: hidden frames need no name, and an interpreter's own debug information is large.
No sample is dropped because of a frame. Stacks without an interpreter frame are native threads and stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np

from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import Module
from pyprof.model.integer_array_operations import distinct
from pyprof.model.interpreter_frames import FunctionPlace, SampleState
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.stacks import FrameKey, StackTable, interpreter_key
from pyprof.model.unwind_result import lookup_pc
from pyprof.options import ViewOptions
from pyprof.session.pipeline.sample_windows import Window

Function = Callable[[int], Sequence[FrameKey]]
"""Type of a view that is bound to one stack tree: (node) -> frames that are shown in its place. rewrite() applies it to
the tree.
"""


class _Kinded(Protocol):
    @property
    def kind(self) -> int: ...


_Key = TypeVar("_Key", bound=_Kinded)
_Shown = TypeVar("_Shown", bound=_Kinded, covariant=True)


class StackKeys(Protocol[_Shown]):
    """The protocol of a stack tree as a view of native frames reads it. The trees of recordings and of profiles
    implement it.

    Attributes:
        parent: Parent of each node. Node 0 is the root of all stacks.
        frame: Number of the frame of each node.
    """

    @property
    def parent(self) -> Sequence[int]: ...

    @property
    def frame(self) -> Sequence[int]: ...

    def key(self, node: int, /) -> tuple[_Shown]:
        """Return the frame of a tree node as a tuple of one element: the result of a view that keeps the frame."""
        ...


class NativeView(Protocol):
    def __call__(
        self, stacks: StackKeys[_Key], is_own: Callable[[_Key], bool], is_function: Callable[[_Key], bool], /
    ) -> Callable[[int], Sequence[_Key]]:
        """Choose which frames to show of stacks that have both native frames and interpreter frames.

        A choice may, for example, leave out the interpreter's own native frames, and keep those of C libraries.

        Args:
            stacks: The stack tree.
            is_own: Returns True if a frame lies in code of the interpreter itself.
            is_function: Returns True if a frame runs a function of the interpreted language.

        Returns:
            A function that maps a node of the tree to the frames that are shown in its place, none to leave it out.
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
    """Make a view that hides the interpreter's own native frames. For each call from an interpreter function into
    native code, it shows only the outermost native function.
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

    A view can only remove native frames. Object files that contain an interpreter's evaluator count as the
    interpreter's own code.

    Args:
        profile: The profile.
        name: Name of a view (see VIEWS). The profile is returned unchanged for any other name.
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
    """Replace or remove frames in the stacks of a profile that have an interpreter frame. All other stacks stay
    unchanged.

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
    native = [leaf for leaf in distinct(profile.stack).tolist() if not interpreted[leaf]]
    kept = rewrite(parent, lambda node: (frame[node],), tree, native)
    for leaf in native:
        place[leaf] = kept[leaf]
    return replace(
        profile,
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=np.array(place, np.int32)[profile.stack],
    )


def view(
    window: Window,
    options: ViewOptions,
    is_own_module: Callable[[Module], bool],
    is_stub: Callable[[FrameKey], bool],
    is_function: Callable[[FrameKey], bool] = is_interpreted,
    lockless: bool = False,
) -> Window:
    """Return a window with the frames and samples that the options show.

    Args:
        window: The window to show.
        options: The options.
        is_own_module: Returns True if a module is part of an interpreter.
        is_stub: Returns True if a frame lies in code that the interpreter generated to call itself (perf trampolines).
        is_function: Returns True if a frame runs a function of an interpreter or of a managed runtime.
        lockless: True if one of the interpreters works without a global lock (GIL).
    """
    if options.lock_holder:
        window = _of_holders(window, lockless)
    if options.native == "all" or not any(map(is_function, window.stacks.frames)):
        return window

    def is_own(key: FrameKey) -> bool:
        space = window.spaces.get(key.space)
        module = space.module_at(lookup_pc(key.pc, key.exact)) if space else None
        if module is None or not module.has_file:
            return is_stub(key)
        return is_own_module(module)

    shown = VIEWS[options.native](window.stacks, is_own, is_function)
    return _rewritten(window, shown, lambda interpreted: interpreted, is_function)


def with_compiled(window: Window, compiled: Callable[[FrameKey], FunctionPlace | None]) -> Window:
    """Replace frames of generated code (perf trampolines) by the interpreter functions that they run.

    This applies to stacks that have no interpreter frames, which are those of samples without stops.

    Args:
        window: The window.
        compiled: Returns the function for which a frame's code was generated, None if there is none.
    """
    old = window.stacks
    places = {at: compiled(key) for at, key in enumerate(old.frames) if in_code(key)}
    named = {at: interpreter_key(place, old.frames[at].trust) for at, place in places.items() if place}
    if not named:
        return window

    def function(node: int) -> Sequence[FrameKey]:
        frame = old.frame[node]
        return (named.get(frame, old.frames[frame]),)

    return _rewritten(window, function, lambda interpreted: not interpreted, is_interpreted)


def _of_holders(window: Window, lockless: bool) -> Window:
    """Return a window with only the samples whose thread held the global lock of its interpreter (the GIL).

    Args:
        window: The window.
        lockless: True if one of the interpreters has no such lock.
    """
    kept = np.flatnonzero(window.state & SampleState.HOLDS_LOCK)
    notes = [make_note("not_holding_lock", held=len(kept), all=len(window.node))]
    if not len(kept) and not (window.state & SampleState.INTERPRETED).any():
        notes.append(make_note("no_lock_seen"))
    elif not len(kept) and lockless:
        notes.append(make_note("no_lock"))
    return replace(
        window,
        time_ns=window.time_ns[kept],
        node=window.node[kept],
        thread=window.thread[kept],
        weight=window.weight[kept],
        length_ns=window.length_ns[kept],
        state=window.state[kept],
        cpu=window.cpu[kept],
        after=replace(window.after, notes=(*window.after.notes, *notes)),
    )


def _rewritten(
    window: Window,
    function: Callable[[int], Sequence[FrameKey]],
    changes: Callable[[bool], bool],
    is_function: Callable[[FrameKey], bool],
) -> Window:
    """Return a window in which a function has replaced the frames of some stacks.

    Args:
        window: The window.
        function: (node) -> frames that replace the node's frame.
        changes: (True if a stack has interpreter frames) -> True if the function is applied to such a stack.
        is_function: Returns True for an interpreter frame.
    """
    old, new = window.stacks, StackTable()
    place = np.array(rewrite(old.parent, function, new), np.int32)
    interpreted = _interpreted(old, is_function)
    kept = [leaf for leaf in distinct(window.node).tolist() if not changes(interpreted[leaf])]
    place[kept] = np.array(new.copy_stacks(old, kept), np.int32)[kept]
    return replace(window, stacks=new, node=place[window.node])


def _interpreted(stacks: StackTable, is_function: Callable[[FrameKey], bool]) -> list[bool]:
    """Return for each node of a stack tree whether its stack has an interpreter frame."""
    found = [False]
    runs_function = list(map(is_function, stacks.frames))
    for node in range(1, len(stacks)):
        found.append(runs_function[stacks.frame[node]] or found[stacks.parent[node]])
    return found
