"""Rows of a pprof file's samples, many at once: where in each of them the stack, the values and the labels are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.importers.protobuf import fields, packed
from pyprof.records import dataclass

AT_ONCE = 1 << 22
"""Bytes of rows that are read together."""
_LONGEST_ROW = 1 << 20
"""Bytes of one sample's stack or values."""
_STACK, _VALUES, _LABELS = 0x0A, 0x12, 0x1A
"""Fields 1, 2 and 3 of a sample as they are usually written, in this order: packed, packed, messages."""
_LEAST, _MORE = 6, 0x80


@dataclass(frozen=True, slots=True)
class Samples:
    """Columns: packed ids of locations, packed values, index of the thread."""

    locations: list[bytes]
    values: list[bytes]
    threads: list[int]


def samples(rows: Sequence[bytes], thread_of: Callable[[Iterable[bytes]], int]) -> Iterator[Samples]:
    """thread_of: labels. Samples of a thread usually end alike: it is asked once for each. Raises FormatError."""
    known: dict[bytes, int] = {}
    for some in _batches(rows):
        joined = b"".join(some)
        found = Samples([], [], [])
        for row, (stack_at, values_at, labels_at, end) in zip(some, _usual(joined, some), strict=True):
            thread = known.get(joined[labels_at:end]) if labels_at else None
            if thread is not None:
                found.locations.append(joined[stack_at : values_at - 2])
                found.values.append(joined[values_at:labels_at])
                found.threads.append(thread)
                continue
            parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
            for key, value in fields(row):
                if key in parts:
                    parts[key].append(value if isinstance(value, bytes) else packed(value))
            found.locations.append(b"".join(parts[1]))
            found.values.append(b"".join(parts[2]))
            found.threads.append(thread_of(parts[3]))
            tail = joined[labels_at:end]
            if labels_at and b"".join(map(_as_label, parts[3])) == tail:
                known[tail] = found.threads[-1]
        for column in (found.locations, found.values):
            if max(map(len, column), default=0) > _LONGEST_ROW:
                raise FormatError("pprof", 0, f"a stack of more than {_LONGEST_ROW:,} bytes")
        yield found


def _batches(rows: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    first = held = 0
    for at, row in enumerate(rows):
        if held > AT_ONCE:
            yield rows[first:at]
            first, held = at, 0
        held += len(row)
    yield rows[first:]


def _usual(joined: bytes, rows: Sequence[bytes]) -> list[list[int]]:
    """Of each row in joined where its stack, its values and its labels begin, and where it ends. Zeros where its fields
    do not stand as they are usually written, or it has no labels.
    """
    sizes = np.array([len(row) for row in rows], np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.frombuffer(joined or b"\0", np.uint8)
    last = len(data) - 1

    def byte(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return data[np.minimum(at, last)].astype(np.int64)

    one, two = byte(starts + 1), byte(starts + 2)
    wide = one >= _MORE
    stack_at = starts + 2 + wide
    values_at = stack_at + np.where(wide, one & _MORE - 1 | two << 7, one) + 2
    size = byte(values_at - 1)
    labels_at = values_at + size
    usual = (sizes >= _LEAST) & (byte(starts) == _STACK) & ~(wide & (two >= _MORE)) & (labels_at < ends)
    usual &= (byte(values_at - 2) == _VALUES) & (size < _MORE) & (byte(labels_at) == _LABELS)
    places = np.stack((stack_at, values_at, labels_at, ends), axis=1)
    found: list[list[int]] = np.where(usual[:, None], places, 0).tolist()
    return found


def _as_label(payload: bytes) -> bytes:
    """The field of a sample that a label is."""
    return b"\x1a" + packed(len(payload)) + payload
