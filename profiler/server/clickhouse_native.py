"""A block of rows in ClickHouse's Native format, column after column. The format has not changed since 2018.

https://clickhouse.com/docs/interfaces/formats/Native: the number of columns and rows, then the name, type and values of
each column. A String column can be inserted into LowCardinality(String).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

import numpy as np
import numpy.typing as npt

from pyprof.importers.protobuf import pack_number
from pyprof.records import dataclass

_EPOCH = date(1970, 1, 1).toordinal()
_TYPES = {"int64": "Int64", "uint64": "UInt64", "float32": "Float32"}
"""ClickHouse's names of types, by numpy's names."""


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """A column of a ClickHouse block; data is its encoded values."""

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
        parts = [pack_number(len(self.columns)), pack_number(self.rows)]
        for column in self.columns:
            parts += (text_bytes(column.name), text_bytes(column.type), column.data)
        return b"".join(parts)


def text_bytes(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return pack_number(len(data)) + data


def days(name: str, values: Iterable[str], times: Sequence[int]) -> BlockColumn:
    """Return a ClickHouse column of dates.

    Args:
        values: Days as YYYY-MM-DD.
        times: How often each value is repeated; texts() and numbers() do the same.
    """
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


def column(name: str, values: npt.NDArray[np.int64] | npt.NDArray[np.uint64] | npt.NDArray[np.float32]) -> BlockColumn:
    return BlockColumn(name, _TYPES[values.dtype.name], np.ascontiguousarray(values).tobytes())


def lists(name: str, values: Iterable[Sequence[str]]) -> BlockColumn:
    sizes, parts = list[int](), list[bytes]()
    for value in values:
        sizes.append(len(value))
        parts += map(text_bytes, value)
    return lists_of_bytes(name, sizes, parts)


def lists_of_bytes(name: str, sizes: Sequence[int], parts: Iterable[bytes]) -> BlockColumn:
    """Return a ClickHouse column of arrays of byte strings.

    Args:
        sizes: Number of texts in each list.
        parts: Texts of all lists, encoded by text_bytes(); a part may hold several.
    """
    return BlockColumn(name, "Array(String)", np.cumsum(sizes, dtype=np.uint64).tobytes() + b"".join(parts))
