"""Blocks of rows in ClickHouse's Native format, and the conversion of segments to one block for each table.

https://clickhouse.com/docs/interfaces/formats/Native: the number of columns and rows, then the name, type and values of
each column. The format has not changed since 2018. A String column can be inserted into LowCardinality(String).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

import numpy as np
import numpy.typing as npt

from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, hour_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache
from pyprof.importers.protobuf import pack_number
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.thread_identity import Labels

_EPOCH = date(1970, 1, 1).toordinal()
_TYPES = {"int64": "Int64", "uint64": "UInt64", "float32": "Float32"}
"""ClickHouse's type names by numpy's type names."""


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """A column of a ClickHouse block. `data` is its encoded values."""

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
        times: Number of consecutive rows for each value.
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
        sizes: Number of byte strings in each array.
        parts: Byte strings of all arrays, encoded by text_bytes(). A part may hold several of them.
    """
    return BlockColumn(name, "Array(String)", np.cumsum(sizes, dtype=np.uint64).tobytes() + b"".join(parts))


SeriesKey = tuple[str, str, str, str, int]
"""Key of a series (label set) in the database: (day, tenant, type, service, number)."""
StacksOfDay = tuple[str, str, StoredStackCache, npt.NDArray[np.int64]]
"""Stacks of one day: (day, tenant, stack cache, numbers of the stacks in the cache)."""
_LETTERS = 1 << 26
"""Maximum total number of characters in the stacks of one block for the database."""


def pieces(found: Iterable[StacksOfDay]) -> Iterable[list[StacksOfDay]]:
    """Split stacks into groups, each of which fits into memory as one block for the database."""
    grouped: dict[int, list[StacksOfDay]] = {}
    before = 0
    for day, tenant, book, wanted in found:
        ends = before + np.cumsum(book.letters[wanted])
        for piece in np.unique(ends // _LETTERS).tolist():
            grouped.setdefault(piece, []).append((day, tenant, book, wanted[ends // _LETTERS == piece]))
        before = int(ends[-1]) if len(ends) else before
    return grouped.values()


def stacks(found: Iterable[StacksOfDay]) -> Block:
    rows = [(day, tenant, book, wanted) for day, tenant, book, wanted in found if len(wanted)]
    times = [len(wanted) for *_, wanted in rows]
    halves = [book.halves[wanted] for _, _, book, wanted in rows]
    both = np.concatenate(halves) if halves else np.zeros((0, 2), np.uint64)
    columns = (
        days("day", (row[0] for row in rows), times),
        texts("tenant", (row[1] for row in rows), times),
        column("stack", both[:, 0]),
        column("stack2", both[:, 1]),
        _frames(rows),
    )
    return Block(sum(times), columns)


def _frames(rows: Iterable[StacksOfDay]) -> BlockColumn:
    """Return the frames of stacks as a database column. Many stacks have the same functions, so each text is encoded
    once.
    """
    sizes, parts = list[int](), list[bytes]()
    for _, _, book, wanted in rows:
        calls = [book.calls(number) for number in wanted.tolist()]
        sizes += map(len, calls)
        used, place = np.unique(np.concatenate(calls), return_inverse=True)
        encoded = np.array([text_bytes(book.text(number)) for number in used.tolist()], object)
        parts.append(b"".join(encoded[place.reshape(-1)].tolist()))
    return lists_of_bytes("frames", sizes, parts)


def series(found: Mapping[SeriesKey, Labels]) -> Block:
    once = [1] * len(found)
    columns = (
        days("day", (key[0] for key in found), once),
        *(
            texts(name, (str(key[at]) for key in found), once)
            for at, name in ((1, "tenant"), (2, "type"), (3, "service"))
        ),
        numbers("series", [key[4] for key in found], once, unsigned=True),
        lists("names", ([name for name, _ in labels] for labels in found.values())),
        lists("label_values", ([value for _, value in labels] for labels in found.values())),
    )
    return Block(len(found), columns)


def _head(segments: Sequence[SegmentRows], batches: Sequence[int], times: Sequence[int]) -> tuple[BlockColumn, ...]:
    """Return the columns that are common to all database tables with data of windows.

    Args:
        batches: Number of the insertion (batch) of each segment.
        times: Number of rows of each segment.
    """
    return (
        days("day", (each.day for each in segments), times),
        texts("tenant", (each.tenant for each in segments), times),
        texts("type", (each.type for each in segments), times),
        texts("service", (each.name.service for each in segments), times),
        numbers("end_ns", [each.name.end_ns for each in segments], times),
        numbers("batch", batches, times, unsigned=True),
    )


def _hours(segments: Sequence[SegmentRows], times: Sequence[int]) -> BlockColumn:
    return numbers("hour", [hour_of(each.name.end_ns) for each in segments], times, unsigned=True)


def samples(segments: Sequence[SegmentRows], batches: Sequence[int]) -> Block:
    times = [len(each.stacks) for each in segments]
    halves = np.concatenate([each.book.halves[each.stacks] for each in segments])
    columns = (
        *_head(segments, batches, times),
        _hours(segments, times),
        column("series", np.concatenate([each.series for each in segments])),
        column("stack", halves[:, 0]),
        column("stack2", halves[:, 1]),
        column("value", np.concatenate([each.values for each in segments])),
        column("count", np.concatenate([each.counts for each in segments])),
        column("squares", np.concatenate([each.squares for each in segments])),
    )
    return Block(sum(times), columns)


def series_of_windows(segments: Sequence[SegmentRows], batches: Sequence[int]) -> Block:
    sums = [each.by_series() for each in segments]
    times = [len(found) for found, _ in sums]
    columns = (
        *_head(segments, batches, times),
        column("series", np.concatenate([found for found, _ in sums])),
        column("amount", np.concatenate([amounts for _, amounts in sums])),
    )
    return Block(sum(times), columns)


def builds(segments: Sequence[SegmentRows], batches: Sequence[int]) -> Block:
    times = [len(each.builds) for each in segments]
    rows = [row for each in segments for row in each.builds]
    once = [1] * len(rows)
    columns = (
        *_head(segments, batches, times),
        _hours(segments, times),
        texts("path", (row[0] for row in rows), once),
        texts("build_id", (row[1] for row in rows), once),
        numbers("amount", [row[2] for row in rows], once),
        numbers("unnamed", [row[3] for row in rows], once),
        numbers("cut", [row[4] for row in rows], once),
    )
    return Block(len(rows), columns)


def windows(segments: Sequence[SegmentRows], batches: Sequence[int]) -> Block:
    once = [1] * len(segments)
    columns = (
        *_head(segments, batches, once),
        texts("unit", (each.unit for each in segments), once),
        texts("host", (each.host for each in segments), once),
        texts("segment", (each.name.path for each in segments), once),
        numbers("length_ns", [each.length_ns for each in segments], once),
        numbers("amount", [int(each.values.sum()) for each in segments], once),
        numbers("samples", [len(each.stacks) for each in segments], once),
    )
    return Block(len(segments), columns)
