"""Selects the frames and samples of a recording that are shown: native frames in interpreter stacks, and whose samples.

This happens before names are resolved: hidden frames need no name, and an interpreter's own debug information is large.
No sample is dropped because of a frame. Stacks without an interpreter frame are native threads and stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pyprof.model.address_space import Module
from pyprof.model.columns import distinct, rewrite
from pyprof.model.interpreter_frames import FunctionPlace, SampleState
from pyprof.model.reason_lookup import make_note
from pyprof.model.stacks import FrameKey, StackTable, interpreter_key
from pyprof.model.walk_result import lookup_pc
from pyprof.options import ViewOptions
from pyprof.records import replace
from pyprof.session.pipeline.native_frame_views import VIEWS, in_code, is_interpreted
from pyprof.session.pipeline.sample_windows import Window


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
        lockless: True if one of the interpreters works without a lock.
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
    """Keep only those samples of a window whose thread held the lock of its interpreter (the GIL). `lockless` is True
    if an interpreter has none.
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
    """Apply a view (which native frames are shown) to some stacks of a window.

    Args:
        window: The window.
        function: The view (see rewrite()).
        changes: Returns True if the view applies to a stack. Its argument is True if the stack has interpreter frames.
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
