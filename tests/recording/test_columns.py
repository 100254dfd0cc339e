"""Tests of packed columns of samples, and of corrupt data."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.recording.column_blocks import pack_columns, unpack_columns

_columns = st.integers(1, 20).flatmap(
    lambda rows: st.lists(
        st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows), min_size=1, max_size=4
    )
)


@given(_columns)
def test_what_is_packed_comes_back(columns: list[list[int] | None]) -> None:
    rows = max((len(column) for column in columns if column is not None), default=3)
    packed = pack_columns([None if column is None else np.array(column, np.int64) for column in columns])
    found = unpack_columns(packed, rows, len(columns))
    assert [None if column is None else column.tolist() for column in found] == columns


def test_equal_numbers_take_no_room() -> None:
    assert len(pack_columns([np.full(1000, 10**15)])) < 30


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b""),
        zlib.compress(b"\1" + bytes(8)),
        zlib.compress(b"\x09" + bytes(100)),
        zlib.compress(bytes(9)) + b"more",
        zlib.compress(bytes(10)),
        zlib.compress(bytes(1 << 24)),
        pack_columns([np.arange(9)])[:-3],
    ],
)
def test_broken_data_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_columns(data, 3, 1)
