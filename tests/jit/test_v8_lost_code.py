"""Tests of frames whose generated JavaScript code is gone when it is looked for: the frame says which function ran."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.v8.javascript_code_source import V8Code
from tests.jit.js_engine import BASE, MadeHeap
from tests.jit.memory import Memory
from tests.unwind.made_stacks import MadeLane, batch_of

GONE, CALLER = 0x7F0000001234, 0x401000
FP, SIZE = 0x7000_0100, 0x200


def names_of(made: MadeHeap, function: int, bytecode: int, context: int = 0x111) -> tuple[list[str], Diagnostics]:
    """Return the names of a frame in code that is gone, [] if it has none."""
    memory, diagnostics = Memory(), Diagnostics()
    memory.put(BASE, bytes(made.data))
    space = AddressSpace(1, 1, 1, (), memory.read, "/")
    v8 = V8Code(X86_64, diagnostics)
    assert v8.update(CodeScan(space, X86_64, 0, 1, tuple(made.symbols.items())))
    assert v8.spans.find(GONE - 1, 5) is None
    assert (GONE - 1, GONE) in v8.stack_named
    words = {FP: 0, FP + 8: CALLER, FP - 8: context, FP - 16: function, FP - 32: bytecode, FP - 40: function}
    batch = batch_of(X86_64, [MadeLane({}, words, [], FP - 0x100, SIZE)])
    none, flags = np.zeros(1, np.uint64), np.zeros(1, np.bool_)
    walk = Walk(
        np.array([0, 2]),
        np.array([GONE, CALLER], np.uint64),
        np.zeros(2, np.bool_),
        np.full(2, Trust.CONTEXT, np.uint8),
        np.array([FP - 0x80, FP + 16], np.uint64),
        np.full(1, StackEnd.ROOT, np.uint8),
        none,
        none,
        flags,
    )
    found = v8.bind_frames(batch, walk, np.zeros(1, np.int64), np.zeros(1, np.int64))
    return [v8.name(span).name for span in found if span is not None], diagnostics


def test_frame_of_baseline_code_that_is_gone_has_the_function_of_its_bytecode() -> None:
    made = MadeHeap()
    found, diagnostics = names_of(made, made.function, made.bytecode)
    assert found == ["inner"]
    assert diagnostics.counts["v8_code_gone"] == 1


def test_frame_of_optimised_code_that_is_gone_has_the_function_that_it_holds() -> None:
    made = MadeHeap()
    found, diagnostics = names_of(made, made.function, 0)
    assert found == ["inner"]
    assert diagnostics.counts["v8_code_gone"] == 1


@pytest.mark.parametrize("what", ["other bytecode", "no function", "no context"])
def test_frame_that_holds_something_else_has_no_name(what: str) -> None:
    made = MadeHeap()
    other = made.object("type_bytecode", 0, 0, 0, 0, 0, 0)
    function = made.bytecode if what == "no function" else made.function
    context = 0x20 if what == "no context" else 0x111
    found, diagnostics = names_of(made, function, other if what == "other bytecode" else 0, context)
    assert found == []
    assert diagnostics.counts["v8_code_gone"] == 0
