"""A film of an emulated ARM program as sample batches, and the share of its stacks that the unwinder finds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import ARM
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackSlab
from pyprof.model.unwind_result import Walk
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.unwinder import Unwinder
from tests.unwind.exidx.shadow import Film

PAGE = 0x1000


def space_of(film: Film, path: Path) -> AddressSpace:
    """Return the address space of the program.

    Args:
        film: The film.
        path: The file in the mappings: the program or a stripped copy.
    """
    status = path.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    mappings = []
    for load in film.elf.loads:
        start, end = load.vaddr & -PAGE, load.vaddr + load.filesz + PAGE - 1 & -PAGE
        perms = "r-xp" if load.executable else "rw-p"
        mappings.append(Mapping(start, end, perms, load.offset & -PAGE, device, status.st_ino, str(path)))
    return AddressSpace(1, 1, 0, tuple(mappings), film.emulator.read, "/")


def batch_of(film: Film, moments: Sequence[int], space: AddressSpace) -> SampleBatch:
    """Return a batch of the moments with these numbers."""
    n = len(moments)
    stacks = [film.stacks[i] for i in moments]
    sizes = np.array([len(stack) for stack in stacks], np.int64)
    rooms = sizes + 7 & -8
    offsets = np.cumsum(rooms) - rooms
    data = np.zeros(int(rooms.sum()), np.uint8)
    for offset, stack in zip(offsets.tolist(), stacks, strict=True):
        data[offset : offset + len(stack)] = np.frombuffer(stack, np.uint8)
    regs = np.array([film.moments[i].registers for i in moments], np.uint64).reshape(n, len(ARM.registers))
    return SampleBatch(
        arch=ARM,
        kind=np.full(n, SampleKind.STOPPED, np.uint8),
        time_ns=np.arange(n, dtype=np.int64),
        tid=np.ones(n, np.int32),
        pid=np.ones(n, np.int32),
        space=np.full(n, space.id, np.int32),
        cpu=np.full(n, -1, np.int32),
        weight=np.ones(n, np.int64),
        regs=regs,
        stack=StackSlab(data, regs[:, ARM.sp].copy(), offsets, sizes),
        spaces={space.id: space},
    )


def unwinder(*sources: str) -> Unwinder:
    diagnostics = Diagnostics()
    return Unwinder(ImageStore(diagnostics), UnwindOptions(sources=sources), diagnostics)


def stacks(walk: Walk) -> list[tuple[int, ...]]:
    starts, pcs = walk.start.tolist(), walk.pc.tolist()
    return [tuple(pcs[a:b]) for a, b in pairwise(starts)]


def found(film: Film, moments: Sequence[int], walk: Walk) -> list[int]:
    """Return the numbers of the walked moments whose whole stack is correct."""
    return [i for i, stack in zip(moments, stacks(walk), strict=True) if stack == truth(film, i)]


def truth(film: Film, moment: int) -> tuple[int, ...]:
    found = film.moments[moment]
    return found.registers[ARM.pc], *found.callers
