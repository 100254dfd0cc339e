"""From a segment to what the database has of it (tables.sql)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pyprof.agent.segments import SegmentName, day_of
from pyprof.errors import FormatError
from pyprof.importers import pprof
from pyprof.importers.builder import About, Builder, LittleWork, MuchWork, Parts
from pyprof.importers.protobuf import TooManyRows
from pyprof.model.columns import largest_sum
from pyprof.model.labels import LONGEST, Labels
from pyprof.model.profile import Frame, FrameKind, ValueType
from pyprof.records import dataclass
from pyprof.server.frames import cut_name, text_of
from pyprof.server.stacks import NOBODY, StackBook, StackFacts, StatedStacks

HOUR_NS = 3600 * 10**9
HOST = "host"
"""The label that names the machine."""
_MOST_FRAMES = 2000
"""Of a stack; the innermost ones of a deeper one are left out."""
_MOST_CALLS, _MOST_LETTERS = 1 << 24, 1 << 28
"""Of the stacks of a segment that are new, all together, as the database gets them: each with all its texts."""
_MOST_OF_LABELS = 1 << 21
"""Letters of the sets of labels of a segment."""
_HALF = 8
_BARE = re.compile(r"!0x[0-9a-f]+$")
"""How a function is named of which only the beginning is known."""
_MOST = 1 << 50
"""Nanoseconds of a window, and what its values are together: 13 days. Those of thousands of windows have a sum, too."""
_SERIES_REMEMBERED = 1 << 16
BuildCost = tuple[str, str, int, int, int]
"""Path, build-id, amount, of it without names, and cut off there."""


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """stacks: numbers in the book, one for each stack and label set; series, values, counts beside them. labels: by the
    number of their series. length_ns: time that it covers.
    """

    tenant: str
    name: SegmentName
    type: str
    unit: str
    host: str
    length_ns: int
    book: StackBook
    stacks: npt.NDArray[np.int64]
    series: npt.NDArray[np.uint64]
    values: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    labels: dict[int, Labels]
    builds: list[BuildCost]

    @property
    def day(self) -> str:
        return day_of(self.name.end_ns)

    def by_series(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Label sets, and the sum of each one's values."""
        found, place = np.unique(self.series, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, place, self.values)
        return found, sums


def hour_of(end_ns: int) -> int:
    """Since 1970, in which a window that ended then ended: the end of an hour is its own."""
    return (end_ns - 1) // HOUR_NS


def rows_of(
    tenant: str,
    name: SegmentName,
    data: bytes,
    book: StackBook,
    most: int | None = None,
    little: LittleWork | None = None,
) -> SegmentRows:
    """book: the tenant's stacks; it learns those of this segment. most: bytes that a stranger's data may inflate
    to; None: it has been taken, or is our own. little: no more is to be done. Raises FormatError, MuchWork.
    """
    builder = Builder()
    builder.little = little
    builder.by_digest = seen = StatedStacks(book)
    try:
        about = pprof.read_into(builder, data, name.service, most=most)
        parts = builder.parts(about)
    except TooManyRows:
        if little is None:
            raise
        raise MuchWork from None
    except OverflowError as error:
        raise FormatError("pprof", 0, str(error)) from None
    values = parts.values
    if len(values) and (values.min() < 0 or largest_sum(values) > _MOST):
        raise FormatError("pprof", 0, "values below 0, or too large")
    if about.duration_ns > _MOST:
        raise FormatError("pprof", 0, "a window that is too long")
    return _rows(tenant, name, about, parts, book, _numbers(parts, seen, book))


def _rows(
    tenant: str, name: SegmentName, about: About, parts: Parts, book: StackBook, numbers: npt.NDArray[np.int64]
) -> SegmentRows:
    """Samples of one stack and one label set together. numbers: of the samples' stacks."""
    of_thread = [each.labels for each in parts.threads]
    labels = list(dict.fromkeys(of_thread)) or [()]
    kind = about.value_types[-1]
    _check_texts(kind, labels)
    place = {each: at for at, each in enumerate(labels)}
    which = np.array([place[each] for each in of_thread], np.int64)[parts.thread]
    keys = numbers * len(labels) + which
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    sums = np.add.reduceat(parts.values[order], first) if len(first) else parts.values
    stacks, sets = np.divmod(keys[order][first], len(labels))
    series = [number_of(each) for each in labels]
    hosts = (value for each in labels for label, value in each if label == HOST)
    return SegmentRows(
        tenant,
        name,
        kind.type,
        kind.unit,
        min(hosts, default=""),
        about.duration_ns,
        book,
        stacks,
        np.array(series, np.uint64)[sets],
        np.ascontiguousarray(sums[:, -1]),
        np.ascontiguousarray(sums[:, 0]),
        dict(zip(series, labels, strict=True)),
        _builds(book, stacks, sums[:, -1]),
    )


def _check_texts(kind: ValueType, labels: Iterable[Labels]) -> None:
    """A file says each of them once, and rows of the database have it again and again. Raises FormatError."""
    if max(len(kind.type), len(kind.unit)) > LONGEST:
        raise FormatError("pprof", 0, f"a type or a unit of more than {LONGEST} letters")
    letters = sum(len(name) + len(value) for each in labels for name, value in each)
    if letters > _MOST_OF_LABELS:
        raise FormatError("pprof", letters, f"sets of labels of more than {_MOST_OF_LABELS:,} letters together")


def _numbers(parts: Parts, seen: StatedStacks, book: StackBook) -> npt.NDArray[np.int64]:
    """Of the stack of each sample, in the book. Those that are new are added."""
    stack = parts.stack.astype(np.int64)
    nodes = np.unique(stack[stack >= 0])
    if not len(nodes):
        return ~stack
    texts: dict[int, str] = {}
    number_of_node = np.zeros(int(nodes[-1]) + 1, np.int64)
    calls = letters = 0
    for node in nodes.tolist():
        path = _path(parts, node)
        facts, shown = _facts(parts, path), list[str]()
        calls += len(path)
        letters += facts.letters
        for frame in path[:_MOST_FRAMES]:
            text = texts.get(frame)
            if text is None:
                text = texts[frame] = text_of(parts.frames[frame], parts.modules)
            letters += len(text)
            if letters > _MOST_LETTERS or calls > _MOST_CALLS:
                raise FormatError(
                    "pprof", node, f"stacks of more than {_MOST_CALLS:,} calls or {_MOST_LETTERS:,} letters"
                )
            shown.append(text)
        number_of_node[node] = book.number(hash_of(shown), shown, facts)
    book.by_digest.update((digest, ~int(number_of_node[node])) for digest, node in seen.items())
    return np.where(stack < 0, ~stack, number_of_node[np.maximum(stack, 0)])


def _path(parts: Parts, node: int) -> list[int]:
    """Frames of a stack, outermost first."""
    parent, frame, found = parts.tree.parent, parts.tree.frame, []
    while node:
        found.append(frame[node])
        node = parent[node]
    return found[::-1]


def _facts(parts: Parts, path: Sequence[int]) -> StackFacts:
    frames = [parts.frames[each] for each in path]
    leaf = frames[-1] if frames else None
    bare = leaf is not None and is_bare(leaf)
    return StackFacts(_build(parts, leaf), bare, _build(parts, _cut_in(frames)))


def is_bare(frame: Frame) -> bool:
    """Has its function no name?"""
    return not frame.lines or _BARE.search(frame.title) is not None


def _cut_in(frames: Sequence[Frame]) -> Frame | None:
    """The outermost frame of code below a marker that says that the stack was cut."""
    if not frames or frames[0].kind != FrameKind.MARKER or frames[0].mark is None:
        return None
    return next((frame for frame in frames if frame.kind != FrameKind.MARKER), None)


def _build(parts: Parts, frame: Frame | None) -> tuple[str, str] | None:
    if frame is None or frame.module < 0:
        return None
    module = parts.modules[frame.module]
    return cut_name(module.path), cut_name(module.build_id)


def _builds(book: StackBook, stacks: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> list[BuildCost]:
    """Of each file in which time was spent: how much, and what of it has no names or was cut off there."""
    leaf, bare, cut = book.leaf[stacks], book.bare[stacks], book.cut[stacks]
    found, place = np.unique(np.concatenate((leaf, cut)), return_inverse=True)
    sums = np.zeros((len(found), 3), np.int64)
    in_leaf, in_cut = place[: len(leaf)], place[len(leaf) :]
    for column, at, amounts in ((0, in_leaf, values), (1, in_leaf, values * bare), (2, in_cut, values)):
        np.add.at(sums[:, column], at, amounts)
    rows = zip(found.tolist(), sums.tolist(), strict=True)
    return [(*book.builds[number], *row) for number, row in rows if number != NOBODY and any(row)]


@lru_cache(_SERIES_REMEMBERED)
def number_of(labels: Labels) -> int:
    """Of a set of labels."""
    return hash_of([part for pair in labels for part in pair])[0]


def hash_of(texts: Sequence[str]) -> tuple[int, int]:
    """The two halves of 128 bits over length-prefixed texts: no two lists are alike by where one text ends."""
    encoded = [text.encode("utf-8", "replace") for text in texts]
    joined = b"".join(part for data in encoded for part in (len(data).to_bytes(4, "little"), data))
    found = hashlib.blake2b(joined, digest_size=2 * _HALF).digest()
    return int.from_bytes(found[:_HALF], "little"), int.from_bytes(found[_HALF:], "little")
