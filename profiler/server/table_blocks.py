"""Conversion of segments to blocks of the tables: one for each table, with the rows of all segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.model.labels import Labels
from pyprof.server.clickhouse_native import (
    Block,
    BlockColumn,
    column,
    days,
    lists,
    lists_of_bytes,
    numbers,
    text_bytes,
    texts,
)
from pyprof.server.segment_rows import SegmentRows, hour_of
from pyprof.server.stack_digest_cache import StoredStackCache

SeriesKey = tuple[str, str, str, str, int]
"""Key of a series in the database: (day, tenant, type, service, number)."""
StacksOfDay = tuple[str, str, StoredStackCache, npt.NDArray[np.int64]]
"""Stacks of a day: (day, tenant, stack cache, numbers in the cache)."""
_LETTERS = 1 << 26
"""Maximum number of characters in the stacks of a block for the database."""


def pieces(found: Iterable[StacksOfDay]) -> Iterable[list[StacksOfDay]]:
    """Split stacks into groups whose blocks for the database fit into memory."""
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
    """Return the database column of frames. Many stacks have the same functions, so each text is encoded once."""
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
    """Return the columns that all database tables of windows have.

    Args:
        batches: Batch of each segment.
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
