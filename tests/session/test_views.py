"""Tests of the view options: lock holders, interpreter frames and native frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyprof.model.interpreter_frames import FunctionPlace, SampleState
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.marker_frames import cut_mark
from pyprof.model.stacks import FrameKey, StackTable, interpreter_key, kernel_key, marker_key, native_key
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.options import NATIVE_VIEWS, ViewOptions
from pyprof.session.pipeline.native_frame_views import VIEWS, view, with_compiled
from pyprof.session.pipeline.sample_windows import Window
from tests.session.test_sample_windows import STOPPED, batch, recorder

INTERPRETED, HOLDS = SampleState.INTERPRETED, SampleState.INTERPRETED | SampleState.HOLDS_LOCK


@pytest.mark.parametrize(
    ("states", "free_threaded", "kept", "why"),
    [
        ((HOLDS, INTERPRETED), False, 1, ()),
        ((HOLDS, INTERPRETED), True, 1, ()),
        ((INTERPRETED, INTERPRETED), True, 0, ("no_lock",)),
        ((INTERPRETED, INTERPRETED), False, 0, ()),
        ((0, 0), False, 0, ("no_lock_seen",)),
    ],
)  # fmt: skip
def test_no_holder_of_the_lock_is_explained(
    states: tuple[int, int], free_threaded: bool, kept: int, why: tuple[str, ...]
) -> None:
    rec = recorder()
    rec.add_batch(batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20)))
    window = replace(rec.cut(), state=np.array(states, np.int32))
    shown = view(window, ViewOptions(lock_holder=True), lambda module: False, lambda key: False, lockless=free_threaded)
    assert len(shown.node) == kept
    assert shown.after.notes == (make_note("not_holding_lock", held=kept, all=2), *map(make_note, why))


CUT = marker_key(cut_mark(StackEnd.NO_RULE, 0))


def native(pc: int) -> FrameKey:
    return native_key(1, pc, True, Trust.EH_FRAME)


def window_of(*stacks: list[FrameKey]) -> Window:
    """Return a window with one sample of each stack, given from root to leaf."""
    rec = recorder()
    rec.add_batch(batch(*((STOPPED, 1 + nth, 0x10) for nth in range(len(stacks)))))
    table = StackTable()
    leaves = []
    for stack in stacks:
        node = 0
        for key in stack:
            node = table.child(node, key)
        leaves.append(node)
    return replace(rec.cut(), stacks=table, node=np.array(leaves, np.int32))


def stacks_of(window: Window) -> list[list[FrameKey]]:
    found = []
    for node in window.node.tolist():
        stack: list[FrameKey] = []
        while node > 0:
            stack[:0] = window.stacks.key(node)
            node = window.stacks.parent[node]
        found.append(stack)
    return found


def test_without_native_frames_only_threads_of_the_interpreter_lose_them() -> None:
    a, b, python = native(1), native(2), interpreter_key(FunctionPlace(7))
    shown = view(
        window_of([CUT, a, python, b], [a, b]), ViewOptions(native="none"), lambda module: False, lambda key: False
    )
    assert stacks_of(shown) == [[CUT, python], [a, b]]


def test_own_frames_of_the_interpreter_are_hidden_but_for_the_root() -> None:
    root, own, helper, python = native(1), native(2), native(3), interpreter_key(FunctionPlace(7))
    window = window_of([root, own, python, own, helper], [root, own])
    shown = view(window, ViewOptions(native="extensions"), lambda module: False, lambda key: key in (root, own))
    assert stacks_of(shown) == [[root, python, helper], [root, own]]


def test_trampoline_is_a_function_of_the_interpreter_where_there_is_no_other() -> None:
    root, trampoline, python = native(1), native(2), interpreter_key(FunctionPlace(7))
    window = window_of([root, trampoline], [root, trampoline, python])
    named = with_compiled(window, lambda key: FunctionPlace(9) if key == trampoline else None)
    assert stacks_of(named) == [[root, interpreter_key(FunctionPlace(9), Trust.EH_FRAME)], [root, trampoline, python]]


def test_of_native_code_that_is_called_one_function_is_shown_for_each_call() -> None:
    root, own, outer, inner, python = native(1), native(2), native(3), native(4), interpreter_key(FunctionPlace(7))
    kernel = kernel_key(1 << 63)
    window = window_of([root, outer, python, own, outer, inner, own, python, inner, outer, kernel], [outer, inner])
    shown = view(window, ViewOptions(native="calls"), lambda module: False, lambda key: key in (root, own))
    assert stacks_of(shown) == [[root, outer, python, outer, python, inner, kernel], [outer, inner]]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("extensions", "root java helper inner"), ("calls", "root java helper"), ("none", "java")],
)
def test_functions_of_a_managed_runtime_stay_in_all_views(name: str, shown: str) -> None:
    keys = {word: native(at) for at, word in enumerate(("root", "own", "entry", "java", "helper", "inner"), 1)}
    root, own, entry, java, helper, inner = keys.values()
    window = window_of([root, own, entry, java, own, helper, inner], [root, own, inner])
    found = view(
        window,
        ViewOptions(native=name),
        lambda module: False,
        lambda key: key in (own, entry),
        lambda key: key == java,
    )
    assert stacks_of(found) == [[keys[word] for word in shown.split()], [root, own, inner]]


def test_every_view_of_the_options_is_there() -> None:
    assert NATIVE_VIEWS.keys() == {"all", *VIEWS}
