"""Tests of the rows of a window: added and amended rows are read back independent of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.lazy_dataclasses import field_names
from pyprof.session.pipeline import window_row_store as under_test
from pyprof.session.pipeline.window_row_store import UNKNOWN, Rows, RowStore, no_lengths

LEAST, MOST = -(1 << 63), (1 << 63) - 1

Row = tuple[int, ...]


def of(rows: Sequence[Row], lengths: bool) -> Rows:
    kinds = np.int64, np.int32, np.int16, np.int16, np.int32, np.int32, np.int64, np.int32, np.int64
    columns = [np.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    if not lengths:
        columns[-1] = no_lengths(len(rows))
    return Rows(*columns)


def listed(rows: Rows) -> list[Row]:
    return [*zip(*(getattr(rows, name).tolist() for name in field_names(Rows)), strict=True)]


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


ROW = st.tuples(*map(numbers, (64, 32, 16, 16, 32, 32, 64, 32)), st.just(UNKNOWN))
CHANCE: st.SearchStrategy[Any] = st.booleans()
BATCHES = st.lists(st.lists(ROW, max_size=9), max_size=9)


@given(BATCHES, st.data())
def test_rows_are_those_that_were_added_and_amended(batches: list[list[Row]], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(under_test, "PIECE", 8)
        store, model = RowStore(), list[Row]()
        for batch in batches:
            added = store.append_rows(of(batch, lengths=False))
            model += batch
            assert listed(added) == batch
            if batch and data.draw(CHANCE):
                added.node[0], added.state[0] = 7, 9
                at = len(model) - len(batch)
                model[at] = (model[at][0], 7, 9, *model[at][3:])
            for at in data.draw(st.lists(st.integers(0, len(model) - 1), max_size=3)) if model else ():
                node, state = data.draw(numbers(32)), data.draw(st.none() | numbers(16))
                store.amend(at, node, state)
                model[at] = (model[at][0], node, model[at][2] if state is None else state, *model[at][3:])
        assert len(store) == len(model)
        assert listed(store.rows()) == model
        first = data.draw(st.integers(0, len(model) + 1))
        assert listed(store.rows(first)) == model[first:]
        assert [row for piece in store.pieces(first) for row in listed(piece)] == model[first:]


def test_rows_with_lengths_are_in_time_order_and_others_keep_theirs() -> None:
    store = RowStore()
    late, early = (9, 1, 0, 0, 1, 0, 1, 0, UNKNOWN), (5, 2, 0, 0, 1, 0, 1, 3, 40)
    store.append_rows(of([late], lengths=False))
    assert listed(store.rows()) == [late]
    assert store.rows().length_ns.strides == (0,)
    store.append_rows(of([early], lengths=True))
    assert listed(store.rows()) == [early, late]
    assert listed(RowStore().rows()) == []


def test_a_million_rows_take_a_few_megabytes() -> None:
    """Store realistic times and a few hot stacks and threads, which take 44 bytes a row uncompressed."""
    store, chance = RowStore(), np.random.default_rng(1)
    each, n = 1_000, 300
    for at in range(n):
        time_ns = (at * each + np.arange(each)) * 1_000_000 + chance.integers(0, 5_000, each)
        node = chance.zipf(1.6, each).clip(max=5_000).astype(np.int32)
        none, state = np.zeros(each, np.int32), np.zeros(each, np.int16)
        thread, cpu = chance.integers(0, 8, each).astype(np.int32), chance.integers(0, 2, each).astype(np.int32)
        store.append_rows(Rows(time_ns, node, state, state, thread, cpu, none + np.int64(1), none, no_lengths(each)))
    packed = sum(len(column) for piece in store._full for column in piece.columns)
    assert len(store._full) == each * n // under_test.PIECE
    assert packed < 8 * each * n
