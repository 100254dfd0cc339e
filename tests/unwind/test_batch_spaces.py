"""Tests of batches with several address spaces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import StackEnd, lookup_pc, lookup_pcs
from pyprof.objfile.mapped_object_files import Image
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.made_stacks import BASE, HandImages, Program, batch_of, make_lane, unwinder_of
from tests.unwind.test_batch import MANY, assert_same, frames_of


def test_every_space_of_a_batch_is_walked_from_depth_zero() -> None:
    program = Program(X86_64, 11)
    lanes = [make_lane(program, 1 + n % 17) for n in range(3 * MANY)]
    for n, lane in enumerate(lanes):
        lane.space = 1 + n % 3
    batch = batch_of(X86_64, lanes)
    unwinder = unwinder_of(program)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    assert [frames_of(walk, n) for n in range(len(lanes))] == [lane.frames for lane in lanes]
    assert (walk.end == StackEnd.ROOT).all()


class _Images(HandImages):
    """An image store with another program in each address space."""

    def __init__(self, programs: Sequence[Program]) -> None:
        super().__init__(programs[0].elf)
        self._programs = programs

    def image(self, space: AddressSpace, avma: int) -> Image | None:
        module = space.module_at(avma)
        if module is None or not module.has_file:
            return None
        return self._made_images.setdefault(space.id, Image(module, self._programs[space.id - 1].elf, BASE, ""))


@pytest.mark.parametrize("sources", [UnwindOptions().sources, ("eh_frame",)], ids=["fallback", "tables"])
def test_spaces_with_a_few_lanes_each_go_together_by_the_rules_of_each(sources: tuple[str, ...]) -> None:
    programs = [Program(X86_64, seed) for seed in range(20, 28)]
    lanes = [make_lane(programs[n % 8], 1 + n % 13, signals=n % 5 == 0 and n % 13 > 2) for n in range(8 * 6)]
    for n, lane in enumerate(lanes):
        lane.space = 1 + n % 8
    batch = batch_of(X86_64, lanes)
    tables = {id(program.elf): program.source for program in programs}
    readers = {"eh_frame": lambda elf, arch, diagnostics: tables[id(elf)]}
    unwinder = Unwinder(_Images(programs), UnwindOptions(sources=sources), Diagnostics(), readers)
    walk = unwinder.walk(batch)
    assert_same(walk, unwinder.walk_scalar(batch))
    if len(sources) > 1:
        assert [frames_of(walk, n) for n in range(len(lanes))] == [lane.frames for lane in lanes]


def test_return_address_zero_is_looked_up_alike_one_by_one_and_in_columns() -> None:
    columns = lookup_pcs(np.array([0], np.uint64), np.array([False]))
    assert lookup_pc(0, False) == int(columns[0]) == 2**64 - 1
