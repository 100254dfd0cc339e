"""What of a recording is shown: which native frames stand beside an interpreter's, and whose samples.

Done before names are looked up: what is not shown needs none, and the interpreter's own debug information is large. No
sample is dropped for a frame. Stacks without an interpreter's frame are native threads and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pyprof.model.interpreter import SampleState
from pyprof.model.stacks import INTERPRETER_SPACE, MARKER_SPACE, FrameKey, StackTable
from pyprof.model.walk import lookup_pc
from pyprof.options import ViewOptions
from pyprof.session.recorder import Window

_OWN = re.compile(r"(lib)?python\d(\.\d+)?[a-z]*(\.so[.\d]*)?$|python$")


def view(
    window: Window,
    options: ViewOptions,
    own_modules: frozenset[str],
    is_stub: Callable[[FrameKey], bool],
    free_threaded: bool = False,
) -> Window:
    """own_modules: paths of modules that hold an interpreter. is_stub: is a frame in code that the interpreter made to
    call itself (perf trampolines)? free_threaded: does one of the interpreters work without a lock?
    """
    if options.lock_holder:
        window = _of_holders(window, free_threaded)
    if options.native == "all" or not any(key[0] == INTERPRETER_SPACE for key in window.stacks.frames):
        return window
    if options.native == "none":
        return _without(window, lambda key: key[0] not in (INTERPRETER_SPACE, MARKER_SPACE), keep_root=False)

    def is_own(key: FrameKey) -> bool:
        space_id, pc, exact, _ = key
        space = window.spaces.get(space_id)
        module = space.module_at(lookup_pc(pc, exact)) if space else None
        if module is None or not module.has_file:
            return is_stub(key)
        return module.path in own_modules or bool(_OWN.match(module.name))

    return _without(window, is_own, keep_root=True)


def with_compiled(window: Window, python: Callable[[FrameKey], int]) -> Window:
    """Functions of an interpreter that stand on the stack as code of their own (perf trampolines) are its frames in
    stacks that have no others: those of samples without stops. python: FrameKey.pc of a frame's function, 0 if it is
    none.
    """
    old = window.stacks
    functions = {
        at: python(key) for at, key in enumerate(old.frames) if key[0] not in (INTERPRETER_SPACE, MARKER_SPACE)
    }
    functions = {at: pc for at, pc in functions.items() if pc}
    if not functions:
        return window
    new = StackTable()
    interpreted, named = [False], [0]
    for node in range(1, len(old)):
        parent, frame = old.parent[node], old.frame[node]
        key = old.frames[frame]
        interpreted.append(interpreted[parent] or key[0] == INTERPRETER_SPACE)
        if frame in functions:
            key = (INTERPRETER_SPACE, functions[frame], True, key[3])
        named.append(new.child(named[parent], key))
    place = np.array(named, np.int32)
    for leaf in np.unique(window.node).tolist():
        if interpreted[leaf]:
            place[leaf] = new.adopt(old, leaf)
    return replace(window, stacks=new, node=place[window.node])


def _of_holders(window: Window, free_threaded: bool) -> Window:
    """Only samples whose thread held its interpreter's lock."""
    kept = np.flatnonzero(window.state & SampleState.HOLDS_LOCK)
    note = f"Only threads that held the GIL: {len(kept)} of {len(window.node)} samples."
    if not len(kept) and not (window.state & SampleState.INTERPRETED).any():
        note += " No CPython was seen in them; samples without stops do not tell either (--collector ptrace)."
    elif not len(kept) and free_threaded:
        note += " This CPython is free-threaded: it has no GIL."
    return replace(
        window,
        time_ns=window.time_ns[kept],
        node=window.node[kept],
        tid=window.tid[kept],
        weight=window.weight[kept],
        length_ns=window.length_ns[kept],
        state=window.state[kept],
        after=replace(window.after, notes=(*window.after.notes, note)),
    )


def _without(window: Window, hidden: Callable[[FrameKey], bool], keep_root: bool) -> Window:
    """keep_root: a stack's outermost frame stays, so that all stacks of a process have one root."""
    old = window.stacks
    hide = [hidden(key) for key in old.frames]
    new = StackTable()
    shown, interpreted = [0], [False]
    for node in range(1, len(old)):
        parent, frame = old.parent[node], old.frame[node]
        interpreted.append(interpreted[parent] or old.frames[frame][0] == INTERPRETER_SPACE)
        stays = not hide[frame] or (keep_root and parent == 0)
        shown.append(new.child(shown[parent], old.frames[frame]) if stays else shown[parent])
    place = np.array(shown, np.int32)
    for leaf in np.unique(window.node).tolist():
        if not interpreted[leaf]:
            place[leaf] = new.adopt(old, leaf)
    return replace(window, stacks=new, node=place[window.node])
