"""Tests of the builder that turns samples of any collector into batches."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder, BytesMemory, Lane
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import ARM, I386, X86_64, Arch
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind, StackBeyondCopy
from tests import syntax

ROOT = Path(__file__).resolve().parent.parent.parent


def space(number: int, pid: int = 5) -> AddressSpace:
    return AddressSpace(number, pid, 0, (), lambda avma, size: b"", "")


def lane(tid: int, arch: Arch = X86_64, of: AddressSpace | None = None, kind: SampleKind = SampleKind.STOPPED) -> Lane:
    return Lane(arch, kind, 100 + tid, 5, tid, of or space(1), 2)


def stacks(batch: SampleBatch) -> list[bytes]:
    slab = batch.stack
    at = zip(slab.offset.tolist(), slab.size.tolist(), strict=True)
    return [bytes(slab.data[start : start + size]) for start, size in at]


def test_lanes_come_out_as_they_went_in_with_copies_that_come_as_bytes() -> None:
    builder = BatchBuilder([ARM], BytesMemory(1 << 20), 9, frozenset({3}))
    for tid, copy in ((7, b"abc"), (8, b""), (9, b"12345678")):
        builder.memory.append_copy(copy)
        number = builder.add_sample(lane(tid, ARM), 0x1000 * tid, len(copy))
        builder.set_registers(number, [tid] * len(ARM.registers))
    builder.add_pieces(0, [Piece(1, b"one")])
    builder.add_pieces(0, [Piece(2, b"two")])
    builder.set_beyond(2, StackBeyondCopy(1 << 30))
    assert builder.copy_of(2) == b"12345678"
    (batch,) = builder.take_batches()
    assert stacks(batch) == [b"abc", b"", b"12345678"]
    assert batch.tid.tolist() == [7, 8, 9]
    assert batch.pid.tolist() == [5, 5, 5]
    assert batch.time_ns.tolist() == [107, 108, 109]
    assert batch.weight.tolist() == [2, 2, 2]
    assert batch.stack.base.tolist() == [0x7000, 0x8000, 0x9000]
    assert batch.regs[:, 0].tolist() == [7, 8, 9]
    assert batch.stack.pieces == {0: (Piece(1, b"one"), Piece(2, b"two"))}
    assert batch.stack.beyond[2].length == 1 << 30
    assert (batch.source_id, batch.unknown, batch.arch) == (9, frozenset({3}), ARM)
    (empty,) = builder.take_batches()
    assert (len(empty), len(empty.stack.data), empty.stack.pieces) == (0, 0, {})


def test_lane_that_turned_out_to_be_elsewhere_takes_only_its_last_space_along() -> None:
    builder = BatchBuilder([X86_64], ArenaMemory(4096), 1)
    first, second = space(1), space(2)
    builder.add_sample(lane(7, of=first), 0, 0)
    builder.move_to_space(0, second)
    (batch,) = builder.take_batches()
    assert batch.space.tolist() == [2]
    assert dict(batch.spaces) == {2: second}


def test_lanes_of_two_architectures_are_batches_of_their_own_over_the_same_memory() -> None:
    builder = BatchBuilder([X86_64, I386], ArenaMemory(4096), 1)
    for tid, arch, word in ((7, X86_64, b"64646464"), (8, I386, b"3232"), (9, X86_64, b"46464646")):
        builder.memory.bytes[builder.memory.used : builder.memory.used + len(word)] = word
        number = builder.add_sample(lane(tid, arch, space(tid)), 0, len(word))
        builder.set_sp_pc(number, tid, 10 * tid)
    wide, narrow = builder.take_batches()
    assert (wide.arch, wide.tid.tolist(), stacks(wide)) == (X86_64, [7, 9], [b"64646464", b"46464646"])
    assert (narrow.arch, narrow.tid.tolist(), stacks(narrow)) == (I386, [8], [b"3232"])
    assert narrow.regs.shape == (1, len(I386.registers))
    assert narrow.regs[0, I386.pc] == 80
    assert set(narrow.spaces) == {8}


def test_thread_that_changes_its_architecture_keeps_its_lanes_in_order() -> None:
    builder = BatchBuilder([X86_64, I386], ArenaMemory(4096), 1)
    for arch in (X86_64, I386, I386, X86_64):
        builder.add_sample(lane(7, arch), 0, 0)
    assert [(batch.arch, len(batch)) for batch in builder.take_batches()] == [(X86_64, 1), (I386, 2), (X86_64, 1)]


def test_builder_is_full_where_the_next_sample_may_not_fit() -> None:
    arena = BatchBuilder([X86_64], ArenaMemory(8 << 20), 1)
    assert not arena.full
    arena.add_sample(lane(7), 0, 8 << 20)
    assert not arena.full
    arena.add_sample(lane(7), 0, 16 << 20)
    assert arena.full
    arena.take_batches()
    assert not arena.full
    copies = BatchBuilder([X86_64], BytesMemory(16), 1)
    copies.memory.append_copy(bytes(16))
    copies.add_sample(lane(7), 0, 16)
    assert copies.full


def test_what_an_unfinished_wait_says_stands_at_its_lane() -> None:
    builder = BatchBuilder([X86_64], ArenaMemory(4096), 1)
    for tid in (7, 8, 9):
        builder.add_sample(lane(tid, kind=SampleKind.BLOCKED), 0, 0)
    builder.set_kernel_stack(0, (11,))
    builder.set_kernel_stack(2, (11,))
    (batch,) = builder.take_batches()
    assert batch.kernel_stack is not None
    assert [batch.kernel_stacks[at] for at in batch.kernel_stack] == [(11,), (), (11,)]
    assert batch.kind.tolist() == [SampleKind.BLOCKED] * 3
    assert np.array_equal(batch.cpu, [-1, -1, -1])


def test_no_collector_makes_its_batches_by_itself() -> None:
    makers = {
        str(path.relative_to(ROOT / "collectors"))
        for path in (ROOT / "collectors").rglob("*.py")
        for node in syntax.nodes(path)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SampleBatch"
    }
    assert makers == {"batch_builder.py"}
