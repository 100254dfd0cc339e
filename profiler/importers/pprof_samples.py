"""Rows of a pprof file's samples, many at once: where each row has its stack, its values and its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.importers.protobuf import pack_number, parse_fields, row_sizes

AT_ONCE = 1 << 22
"""Number of bytes of sample rows of a pprof file that are read together."""
_MAX_ROW = 1 << 20
"""Maximum size in bytes of one pprof sample's stack or values."""
_STACK, _VALUES, _LABELS = 0x0A, 0x12, 0x1A
"""Tags of fields 1, 2 and 3 of a pprof sample in their usual form and order: packed, packed, messages."""
_LEAST, _MORE = 6, 0x80
_UNKNOWN = -1


class Samples:
    """The samples of a pprof file in columns.

    Attributes:
        values: Packed values of each sample.
        tails: Encoded labels of each sample.
        threads: Thread index of each sample.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._joined = b"".join(rows)
        stack_at, values_at, labels_at, ends = _usual(self._joined, rows)
        self._spans = list(zip(stack_at, values_at, strict=True))
        self._unusual: dict[int, bytes] = {}
        joined = self._joined
        self.values = [joined[begin:end] for begin, end in zip(values_at, labels_at, strict=True)]
        self.tails = [joined[begin:end] for begin, end in zip(labels_at, ends, strict=True)]
        self.threads: list[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def stack_keys(self, wanted: Iterable[int]) -> list[bytes]:
        joined, spans, unusual = self._joined, self._spans, self._unusual
        return [unusual[at] if at in unusual else joined[spans[at][0] : spans[at][1] - 2] for at in wanted]

    def set_row(self, at: int, locations: bytes, values: bytes, thread: int) -> None:
        """Set the columns of a pprof sample that does not have the usual form."""
        self._unusual[at], self.values[at], self.threads[at] = locations, values, thread


def read_samples(rows: Sequence[bytes], thread_of: Callable[[Iterable[bytes]], int]) -> Iterator[Samples]:
    """Yield the samples of a pprof file in batches.

    Args:
        thread_of: Returns the thread for labels. Samples of a thread usually end with equal bytes, so it is called once
            for
            each distinct end.

    Raises:
        FormatError: A row is broken.
    """
    known: dict[bytes, int] = {b"": _UNKNOWN}
    for some in _batches(rows):
        found = Samples(some)
        for tail in dict.fromkeys(found.tails):
            if tail not in known:
                labels = parse_fields(tail)
                usual = all(key == 3 and isinstance(value, bytes) for key, value in labels)
                known[tail] = thread_of(value for _, value in labels if isinstance(value, bytes)) if usual else _UNKNOWN
        found.threads = [known[tail] for tail in found.tails]
        if _UNKNOWN in found.threads:
            for at, row in enumerate(some):
                if found.threads[at] == _UNKNOWN:
                    found.set_row(at, *_unusual(row, thread_of))
        yield found


def _unusual(row: bytes, thread_of: Callable[[Iterable[bytes]], int]) -> tuple[bytes, bytes, int]:
    """Return the packed locations, the packed values and the thread of a pprof sample that does not have the usual
    form.

    Raises:
        FormatError: The row is broken or too large.
    """
    parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for key, value in parse_fields(row):
        if key in parts:
            parts[key].append(value if isinstance(value, bytes) else pack_number(value))
    locations, values = b"".join(parts[1]), b"".join(parts[2])
    if max(len(locations), len(values)) > _MAX_ROW:
        raise FormatError("pprof", 0, f"a stack of more than {_MAX_ROW:,} bytes")
    return locations, values, thread_of(parts[3])


def _batches(rows: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if sum(map(len, rows)) <= AT_ONCE:
        yield rows
        return
    first = held = 0
    for at, row in enumerate(rows):
        if held > AT_ONCE:
            yield rows[first:at]
            first, held = at, 0
        held += len(row)
    yield rows[first:]


def _usual(joined: bytes, rows: Sequence[bytes]) -> list[list[int]]:
    """Return four columns of offsets into `joined`: the begin of each sample's stack, values and labels, and its end.

    A row is all zeros if its fields do not have the usual form, or if it has no labels.
    """
    sizes = row_sizes(rows)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.frombuffer(joined or b"\0", np.uint8)

    def byte(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return data.take(at, mode="clip").astype(np.int64)

    one, two = byte(starts + 1), byte(starts + 2)
    wide = one >= _MORE
    stack_at = starts + 2 + wide
    values_at = stack_at + np.where(wide, one & _MORE - 1 | two << 7, one) + 2
    size = byte(values_at - 1)
    labels_at = values_at + size
    usual = (sizes >= _LEAST) & (byte(starts) == _STACK) & ~(wide & (two >= _MORE)) & (labels_at < ends)
    usual &= (byte(values_at - 2) == _VALUES) & (size < _MORE) & (byte(labels_at) == _LABELS)
    found: list[list[int]] = (np.stack((stack_at, values_at, labels_at, ends)) * usual).tolist()
    return found
