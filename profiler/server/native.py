"""Rows as ClickHouse takes them fastest: its format Native, column after column. It was the same in 2018.

https://clickhouse.com/docs/interfaces/formats/Native: how many columns and rows, then of each column its name, its type
and its values. A column of String goes into a table's LowCardinality(String).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

import numpy as np
import numpy.typing as npt

from pyprof.importers.protobuf import packed
from pyprof.records import dataclass

_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """data: of all its values."""

    name: str
    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Block:
    rows: int
    columns: tuple[BlockColumn, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def data(self) -> bytes:
        parts = [packed(len(self.columns)), packed(self.rows)]
        for column in self.columns:
            parts += (text_bytes(column.name), text_bytes(column.type), column.data)
        return b"".join(parts)


def text_bytes(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return packed(len(data)) + data


def days(name: str, values: Iterable[str], times: Sequence[int]) -> BlockColumn:
    """values: YYYY-MM-DD; each stands so many times. So in texts() and numbers()."""
    found = np.array([date.fromisoformat(value).toordinal() - _EPOCH for value in values], np.uint16)
    return BlockColumn(name, "Date", np.repeat(found, times).tobytes())


def texts(name: str, values: Iterable[str], times: Sequence[int]) -> BlockColumn:
    return BlockColumn(
        name, "String", b"".join(text_bytes(value) * count for value, count in zip(values, times, strict=True))
    )


def numbers(name: str, values: Sequence[int], times: Sequence[int], unsigned: bool = False) -> BlockColumn:
    if unsigned:
        return column(name, np.repeat(np.array(values, np.uint64), times))
    return column(name, np.repeat(np.array(values, np.int64), times))


def column(name: str, values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> BlockColumn:
    return BlockColumn(name, "UInt64" if values.dtype == np.uint64 else "Int64", np.ascontiguousarray(values).tobytes())


def lists(name: str, values: Iterable[Sequence[str]]) -> BlockColumn:
    sizes, parts = list[int](), list[bytes]()
    for value in values:
        sizes.append(len(value))
        parts += map(text_bytes, value)
    return lists_of_bytes(name, sizes, parts)


def lists_of_bytes(name: str, sizes: Sequence[int], parts: Iterable[bytes]) -> BlockColumn:
    """sizes: texts in each list. parts: all of them, as text_bytes() makes them, one or several in each."""
    return BlockColumn(name, "Array(String)", np.cumsum(sizes, dtype=np.uint64).tobytes() + b"".join(parts))
