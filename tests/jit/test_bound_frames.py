"""Tests of the cache that gives frames the numbers of their JIT code: it follows what the process describes later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.runtime_code.jit_code_of_recording import RuntimeCode
from tests.jit.test_ended_processes import PC, program, runtime_code
from tests.unwind.made_stacks import MadeLane, batch_of

pytestmark = [pytest.mark.live, pytest.mark.system]

SIZE = 0x10
"""Size in bytes of each piece of code in the perf map."""


@pytest.fixture
def perf_map() -> Iterator[tuple[RuntimeCode, AddressSpace, Path]]:
    """Yield a process with a mapping for generated code, and its perf map, which has one line."""
    code, _ = runtime_code()
    with program() as (space, path):
        generated = Mapping(PC, PC + 0x1000, "r-xp", 0, "0:0", 0, "")
        space = replace(space, mappings=tuple(sorted((*space.mappings, generated), key=lambda one: one.start)))
        assert code.processes.process(space) is not None
        yield code, space, path


def bind(code: RuntimeCode, space: AddressSpace, *times_ns: int, pc: int = PC) -> list[str]:
    """Return the names of the innermost frames of samples, "" for those without a description."""
    n = len(times_ns)
    batch = batch_of(X86_64, [MadeLane({}, {}, [], 0, 0, space=space.id)] * n)
    batch = replace(batch, time_ns=np.array(times_ns), spaces={space.id: space})
    none, flags = np.zeros(n, np.uint64), np.zeros(n, np.bool_)
    pcs, trust, ends = np.full(n, pc, np.uint64), np.full(n, Trust.CONTEXT, np.uint8), np.full(n, StackEnd.ROOT)
    walk = Walk(np.arange(n + 1), pcs, ~flags, trust, none, ends.astype(np.uint8), none, none, flags)
    numbers = code.bind_frames(batch, walk)
    assert numbers is not None
    found = [code.description(number).name for number in numbers.tolist() if number]
    assert all(name is not None for name in found)
    names = iter([name.name for name in found if name is not None])
    return [next(names) if number else "" for number in numbers.tolist()]


def test_code_that_is_described_after_a_sample_has_its_name(perf_map: tuple[RuntimeCode, AddressSpace, Path]) -> None:
    code, space, path = perf_map
    later = PC + SIZE
    assert bind(code, space, time.monotonic_ns(), pc=later) == [""]
    with path.open("a") as more:
        more.write(f"{later:x} {SIZE:x} later\n")
    code.processes.refresh(space)
    assert bind(code, space, time.monotonic_ns(), pc=later) == ["later"]


def test_each_sample_has_the_code_of_its_time(perf_map: tuple[RuntimeCode, AddressSpace, Path]) -> None:
    code, space, path = perf_map
    before = time.monotonic_ns()
    assert bind(code, space, before) == ["early"]
    code.processes.refresh(space)
    with path.open("a") as more:
        more.write(f"{PC:x} {SIZE:x} other\n")
    code.processes.refresh(space)
    after = time.monotonic_ns()
    assert bind(code, space, before, after) == ["early", "other"]
    assert bind(code, space, after) == ["other"]
    assert bind(code, space, before) == ["early"]


def test_numbers_of_dropped_descriptions_are_not_used_again(perf_map: tuple[RuntimeCode, AddressSpace, Path]) -> None:
    code, space, _ = perf_map
    now = time.monotonic_ns()
    assert bind(code, space, now) == ["early"]
    code.drop_unused(set(), now)
    assert bind(code, space, now) == ["early"]
