"""Tests of EXIDX on emulated ARM programs, at every instruction against the true stack."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import ARM, ARMEB
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import open_debug_frame
from tests.support import build, need
from tests.unwind.exidx.build import source_of, symbols
from tests.unwind.exidx.call_sites import SHAPES
from tests.unwind.exidx.running import batch_of, found, space_of, stacks, unwinder
from tests.unwind.exidx.shadow import Film, Truth, watch

pytestmark = [pytest.mark.matrix, pytest.mark.system]


@dataclass(frozen=True)
class Run:
    """An emulated run.

    Attributes:
        own: Moments in the program's own code, outside of the C library.
        calls: Moments before a call instruction.
    """

    program: Path
    film: Film
    space: AddressSpace
    own: list[int]
    calls: list[int]


@pytest.fixture(scope="module", params=["-marm", "-mthumb"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("running")
    full, program = folder / "full", folder / "program"
    flags = [request.param, "-O2", "-g", "-funwind-tables", "-fomit-frame-pointer", "-static"]
    build(SHAPES, full, *flags, compiler="arm-linux-gnueabihf-g++")
    strip = [need("arm-linux-gnueabihf-objcopy"), "--strip-debug", str(full), str(program)]
    subprocess.run(strip, check=True, timeout=60)
    film = watch(ElfFile.open(str(full)))
    frames = open_debug_frame(film.elf, ARM, Diagnostics())
    assert frames is not None
    covered: dict[int, bool] = {}
    own = []
    for number, moment in enumerate(film.moments):
        pc = moment.registers[ARM.pc]
        if covered.setdefault(pc, frames.function_at(pc) is not None):
            own.append(number)
    return Run(full, film, space_of(film, program), own, [i for i in own if film.moments[i].at_call])


def test_program_throws_and_catches_while_it_is_watched(run: Run) -> None:
    throw = symbols(run.program)["__cxa_throw"]
    assert sum(moment.registers[ARM.pc] == throw for moment in run.film.moments) == 2
    assert len(run.calls) > 150
    assert max(len(moment.callers) for moment in run.film.moments) > 10


def test_every_stack_at_a_call_is_exact_by_exidx_alone(run: Run) -> None:
    walk = unwinder("exidx").walk(batch_of(run.film, run.calls, run.space))
    assert found(run.film, run.calls, walk) == run.calls
    assert set(walk.end.tolist()) == {StackEnd.ROOT}
    assert set(walk.trust.tolist()) == {Trust.CONTEXT, Trust.EXIDX}


def covered_moments(run: Run) -> list[int]:
    """Return the moments at which tables cover the code of every frame."""
    exidx = source_of(run.program)
    covered: dict[int, bool] = {}

    def covers(svma: int) -> bool:
        if svma not in covered:
            covered[svma] = exidx.function_at(svma) is not None
        return covered[svma]

    return [
        number
        for number, moment in enumerate(run.film.moments)
        if covers(moment.registers[ARM.pc]) and all(covers(back - 1) for back in moment.callers)
    ]


def test_every_stack_of_covered_code_is_exact_at_any_instruction(run: Run) -> None:
    moments = covered_moments(run)
    assert sum(run.film.moments[number].at_call for number in moments) > len(run.calls)
    assert len(moments) > 2000
    walk = unwinder("exidx").walk(batch_of(run.film, moments, run.space))
    assert found(run.film, moments, walk) == moments


@pytest.mark.parametrize(("sources", "least"), [(("exidx",), 0.998), (("debug_frame", "exidx"), 0.997)])
def test_share_of_exact_stacks_at_arbitrary_instructions(
    run: Run, sources: tuple[str, ...], least: float, record_property: Callable[[str, object], None]
) -> None:
    space = space_of(run.film, run.program)
    walk = unwinder(*sources).walk(batch_of(run.film, run.own, space))
    share = len(found(run.film, run.own, walk)) / len(run.own)
    record_property("exact " + ",".join(sources), round(share, 4))
    assert share >= least


def test_debug_frame_is_inexact_only_where_gcc_takes_a_frame_down_in_two_steps(run: Run) -> None:
    walk = unwinder("debug_frame", "exidx").walk(batch_of(run.film, run.own, space_of(run.film, run.program)))
    exact = set(found(run.film, run.own, walk))
    exit_handlers = symbols(run.program)["__run_exit_handlers"]  # C code without a table
    huge = symbols(run.program)["_Z10huge_framei"]
    inexact = [run.film.moments[i] for i in run.own if i not in exact]
    where = {
        "huge_frame" if huge <= moment.registers[ARM.pc] < huge + 64 else "elsewhere"
        for moment in inexact
        if not any(exit_handlers <= back < exit_handlers + 1024 for back in moment.callers)
    }
    assert where == {"huge_frame"}


def test_batch_walker_finds_what_the_scalar_walker_finds(run: Run) -> None:
    moments = list(range(0, len(run.film.moments), 7))
    batch = batch_of(run.film, moments, run.space)
    one, other = unwinder("exidx", "fp"), unwinder("exidx", "fp")
    walk, twin = one.walk(batch), other.walk_scalar(batch)
    assert stacks(walk) == stacks(twin)
    for column in ("exact", "trust", "end", "missing", "top"):
        assert np.array_equal(getattr(walk, column), getattr(twin, column)), column


@pytest.mark.parametrize(("restorer", "offset"), [("__default_sa_restorer", 32), ("__default_rt_sa_restorer", 160)])
def test_interrupted_code_below_a_signal_handler_is_exact(run: Run, restorer: str, offset: int) -> None:
    """Interrupt each moment: put the kernel's signal frame below it and stop at a handler's first instruction."""
    places = symbols(run.program)
    back = places[restorer]
    moments = [i for i in covered_moments(run)[::5] if run.film.moments[i].registers[ARM.sp] % 4 == 0]
    film = Film(run.film.elf, run.film.emulator)
    for i in moments:
        registers = run.film.moments[i].registers
        sp = registers[ARM.sp] - 1024 & -8
        between = bytearray(registers[ARM.sp] - sp)
        struct.pack_into("<16I", between, offset, *registers)
        inner = [0xDEAD] * 16
        inner[ARM.pc], inner[ARM.lr], inner[ARM.sp] = places["_Z4leafi"], back | 1, sp
        film.moments.append(Truth(tuple(inner), (back, registers[ARM.pc], *run.film.moments[i].callers), False))
        film.stacks.append(bytes(between) + run.film.stacks[i])
    everything = list(range(len(moments)))
    walk = unwinder("exidx").walk(batch_of(film, everything, run.space))
    assert found(film, everything, walk) == everything
    assert len(moments) > 400
    first = walk.start[:-1]
    assert walk.exact[first].all()
    assert not walk.exact[first + 1].any()
    assert walk.exact[first + 2].all()  # the interrupted frame's pc is exact


def test_big_endian_stacks_give_the_same_walk(run: Run) -> None:
    moments = covered_moments(run)[::3]
    batch = batch_of(run.film, moments, run.space)
    swapped = batch.stack.data[: len(batch.stack.data) & ~3].view("<u4").byteswap().view(np.uint8)
    big = replace(batch, arch=ARMEB, stack=replace(batch.stack, data=swapped))
    one, other = unwinder("exidx").walk(batch), unwinder("exidx").walk(big)
    assert stacks(one) == stacks(other)
    assert np.array_equal(one.trust, other.trust)
