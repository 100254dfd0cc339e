"""Conversion of a segment to rows of the database (tables.sql), and of frames to texts and back.

The text of a frame has these parts: kind, trust, mark, file, build ID, place in the file, title, and lines. They are
separated by characters that are replaced in names. So a text states everything that the segment stated about the frame,
and equal frames have equal texts.
"""

from __future__ import annotations

import hashlib
import re
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.exporters import pprof as written
from pyprof.fleet.server.ingest.stack_caches import (
    NOBODY,
    FrameCache,
    ShownFrame,
    StackFacts,
    StatedStacks,
    StoredStackCache,
    piece_of,
)
from pyprof.fleet.wire.segment_names import SegmentName, day_of
from pyprof.importers import pprof, pprof_tables
from pyprof.importers.profile_builder import About, Builder, Parts, WorkLimit, WorkLimitExceeded
from pyprof.importers.protobuf import TooManyRows, parse_fields
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.confidence_interval import squared_weights
from pyprof.model.integer_array_operations import largest_sum
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, ValueType
from pyprof.model.thread_identity import LONGEST, Labels
from pyprof.model.unwind_result import Trust

_PART, _LINE, _FIELD = "\x1f", "\x1e", "\x1d"
_PARTS, _FIELDS = 8, 4
_WORD = 1 << 64
_MAX_NAME, _MAX_LINES = 1 << 14, 1000
"""Maximum number of characters of one part of a frame's text, and maximum number of source lines of a frame. The
innermost lines are kept.
"""
_OFFSET = re.compile(r"\+[0-9a-f]{1,16}", re.ASCII)
_CLEAN = str.maketrans({_PART: "?", _LINE: "?", _FIELD: "?", "\0": "?"})
_KINDS = {kind.name.lower(): kind for kind in FrameKind}
_TRUSTS = {trust.label: trust for trust in Trust}


def text_of(frame: Frame, modules: tuple[ModuleInfo, ...]) -> str:
    """Return the text that stands for a frame in the database.

    Args:
        modules: Object files of the segment that contains the frame. Here Frame.rel is the offset in the file.
    """
    module = modules[frame.module] if frame.module >= 0 else None
    mark = written.encode_frame(frame).hex() if frame.mark is not None else ""
    lines = _LINE.join(
        _FIELD.join((_clean(each.function), _clean(each.system_name), _clean(each.file or ""), str(each.line)))
        for each in frame.lines[:_MAX_LINES]
    )
    where = (
        (_clean(module.path), _clean(module.build_id), f"+{frame.rel % _WORD:x}")
        if module is not None
        else ("", "", f"{frame.lookup:x}")
    )
    head = (frame.kind.name.lower(), Trust(frame.trust).label, mark)
    return _PART.join((*head, *where, _clean(frame.title), lines))


def cut_name(text: str) -> str:
    """Cut a function's name to the maximum length in the database."""
    return text[:_MAX_NAME]


def _clean(text: str) -> str:
    return cut_name(text).translate(_CLEAN).encode("utf-8", "replace").decode()


def frame_of(text: str, module: int) -> Frame:
    """Decode the text that stands for a frame in the database. A text that does not have the right parts becomes the
    title of a frame.

    Args:
        module: Index of the object file that module_of(text) returns, -1 for none.
    """
    parts = text.split(_PART)
    if len(parts) != _PARTS:
        return Frame(FrameKind.NATIVE, 0, 0, 0, -1, (), Trust.CONTEXT, text)
    kind_name, trust, mark, _, _, rel, title, lines = parts
    kind = _KINDS.get(kind_name, FrameKind.NATIVE)
    place = int(rel, 16) if rel else 0
    found = tuple(_line(each) for each in lines.split(_LINE)) if lines else ()
    said = _mark(mark, kind, title).mark if mark else None
    return Frame(kind, place, place, place, module, found, _TRUSTS.get(trust, Trust.CONTEXT), title, said)


def file_offset(text: str) -> int | None:
    """Return the file offset of a frame's code, from the text that stands for the frame in the database. None if the
    text states no offset.
    """
    parts = text.split(_PART)
    return int(parts[5], 16) if len(parts) == _PARTS and _OFFSET.fullmatch(parts[5]) else None


def _mark(text: str, kind: FrameKind, title: str) -> pprof_tables.FrameEvidence:
    for _, value in parse_fields(bytes.fromhex(text)):
        if isinstance(value, bytes):
            return pprof_tables.read_frame_evidence(value, kind, title)
    return pprof_tables.FrameEvidence(kind)


def _line(text: str) -> Line:
    function, system_name, file, line = (*text.split(_FIELD), "", "", "")[:_FIELDS]
    return Line(function, system_name, 0, file or None, int(line) if line.isdigit() else 0)


def module_of(text: str) -> ModuleInfo | None:
    """Return the object file of a frame from the text that stands for the frame in the database."""
    parts = text.split(_PART)
    if len(parts) != _PARTS or not parts[3]:
        return None
    return ModuleInfo(parts[3], parts[4], 0, 0, 0, bool(parts[7]), False)


HOUR_NS = 3600 * 10**9
HOST = "host"
"""Name of the label that states the machine on which a sample was taken."""
_MAX_FRAMES = 2000
"""Maximum number of frames of a stack in the database. Of a deeper stack, only this many outermost frames are kept."""
_MAX_CALLS, _MAX_LETTERS = 1 << 24, 1 << 28
"""Maximum total numbers of calls and of characters in the new stacks of a segment, in the form in which the database
stores stacks.
"""
_MAX_OF_LABELS = 1 << 21
"""Maximum total number of characters in all label sets of a segment."""
_HALVES = struct.Struct("<QQ")
_BARE = re.compile(r"!0x[0-9a-f]+$")
"""Pattern of the title of a function without a name, of which only the start address is known."""
_MOST = 1 << 50
"""Maximum length of a window in nanoseconds, and maximum sum of its values (13 days): the sum of thousands of windows
then fits into 64 bits.
"""
_SERIES_REMEMBERED = 1 << 16
BuildCost = tuple[str, str, int, int, int]
"""The cost of samples in one object file: (path, build ID, amount, amount without function names, amount of stacks that
were truncated there).
"""


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """The rows of one segment: one for each stack and label set.

    Attributes:
        stacks: Number of each row's stack in the tenant's stack cache; (n,).
        series, values, counts: Label set, value and number of samples of each row; (n,).
        squares: The sum over a row's samples of the squared value that one sample stands for; (n,).
        labels: Label sets by the numbers in `series`.
        length_ns: Length of the segment's window in nanoseconds.
        end_ns: End of the window since the epoch that the file states, 0 if it states none.
    """

    tenant: str
    name: SegmentName
    type: str
    unit: str
    host: str
    length_ns: int
    book: StoredStackCache
    stacks: npt.NDArray[np.int64]
    series: npt.NDArray[np.uint64]
    values: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    squares: npt.NDArray[np.float32]
    labels: dict[int, Labels]
    builds: list[BuildCost]
    end_ns: int = 0

    @property
    def day(self) -> str:
        return day_of(self.name.end_ns)

    def by_series(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the numbers of the series (label sets) in the segment, and the sum of the values of each."""
        found, place = np.unique(self.series, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, place, self.values)
        return found, sums


def hour_of(end_ns: int) -> int:
    """Return the hour (since 1970) that contains the end of a window. A window that ends exactly with an hour belongs
    to that hour.
    """
    return (end_ns - 1) // HOUR_NS


def rows_of(
    tenant: str,
    name: SegmentName,
    data: bytes,
    book: StoredStackCache,
    most: int | None = None,
    little: WorkLimit | None = None,
    lends: bool = False,
) -> SegmentRows:
    """Convert a segment to rows of the server's database.

    Args:
        book: Stack cache of the tenant, to which the stacks of this segment are added.
        most: Maximum inflated size in bytes of data from a client, None for a stored segment.
        little: Limits for the work on the segment, None for no limits.
        lends: Let the stack cache keep frames for the cache of another process, which will copy its stacks.

    Raises:
        FormatError: The segment is broken or too large.
        WorkLimitExceeded: The segment exceeds the limits.
    """
    builder = _WholeStacks()
    builder.work_limit = little
    builder.by_digest, builder.read = (seen := StatedStacks(book)), book.known.read
    if lends:
        builder.met = book.lent = {}
    try:
        about = pprof.read_into(builder, data, name.service, max_bytes=most)
        parts = builder.parts(about)
    except TooManyRows:
        if little is None:
            raise
        raise WorkLimitExceeded from None
    except OverflowError as error:
        raise FormatError("pprof", 0, str(error)) from None
    values = parts.values
    if len(values) and (values.min() < 0 or largest_sum(values) > _MOST):
        raise FormatError("pprof", 0, "values below 0, or too large")
    if about.duration_ns > _MOST:
        raise FormatError("pprof", 0, "a window that is too long")
    numbers = _numbers(parts.stack, builder.calls, _ShownFrames(parts, builder.digests, book.known), book)
    book.by_digest.update((digest, ~int(numbers[node])) for digest, node in seen.items())
    stack = parts.stack.astype(np.int64)
    return _rows(tenant, name, about, parts, book, np.where(stack < 0, ~stack, numbers[np.maximum(stack, 0)]))


def _rows(
    tenant: str, name: SegmentName, about: About, parts: Parts, book: StoredStackCache, numbers: npt.NDArray[np.int64]
) -> SegmentRows:
    """Sum up the samples of a segment by stack and label set. `numbers` has the number of each sample's stack."""
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
    squares = squared_weights(parts.values[:, 0], parts.values[:, -1])
    squares = np.add.reduceat(squares[order], first) if len(first) else squares
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
        squares.astype(np.float32),
        dict(zip(series, labels, strict=True)),
        _builds(book, stacks, sums[:, -1]),
        about.start_ns + about.duration_ns if about.start_ns else 0,
    )


def _check_texts(kind: ValueType, labels: Iterable[Labels]) -> None:
    """Check the length of texts that a segment's file states once, but the database repeats in every row.

    Raises:
        FormatError: The texts are too long.
    """
    if max(len(kind.type), len(kind.unit)) > LONGEST:
        raise FormatError("pprof", 0, f"a type or a unit of more than {LONGEST} letters")
    letters = sum(len(name) + len(value) for each in labels for name, value in each)
    if letters > _MAX_OF_LABELS:
        raise FormatError("pprof", letters, f"sets of labels of more than {_MAX_OF_LABELS:,} letters together")


class _WholeStacks(Builder):
    """A Builder, which a pprof reader fills, for segments that go to the database. It makes no tree, because the
    database stores each stack as a whole.

    Attributes:
        calls: Frames of each stack.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Sequence[int]] = [()]
        self._number_of: dict[bytes, int] = {b"": 0}
        self._count = 0

    def add_stack(self, frames: Iterable[int], below: int = 0) -> int:
        """Add a stack to the list of stacks (calls), and return its index.

        Raises:
            FormatError: There are too many calls.
        """
        assert not below, "a whole stack"
        path = array("i", frames)
        number = self._number_of.setdefault(path.tobytes(), len(self.calls))
        if number == len(self.calls):
            self._count += len(path)
            _check_stacks(self._count, 0)
            self.calls.append(path)
        return number


class _ShownFrames(dict[int, ShownFrame]):
    """A mapping from the number of a frame in a file to the frame in the database's form. An entry is made on its first
    use. FormatError is raised if the texts of the frames have too many characters in total.
    """

    def __init__(self, parts: Parts, digests: Mapping[int, bytes], known: FrameCache) -> None:
        super().__init__()
        self._parts, self._digests, self._known = parts, digests, known
        self._letters = 0

    def __missing__(self, number: int) -> ShownFrame:
        digest = self._digests[number]
        shown = self._known.shown.get(digest)
        if shown is None:
            frame = self._parts.frames[number]
            text = text_of(frame, self._parts.modules)
            self._letters += len(text)
            _check_stacks(0, self._letters)
            is_marker, build = frame.kind == FrameKind.MARKER, _build(self._parts, frame)
            shown = self._known.show(
                digest, text, build, is_bare(frame), is_marker, is_marker and frame.mark is not None
            )
        self[number] = shown
        return shown


def _check_stacks(calls: int, letters: int) -> None:
    """Check the number of calls and characters of a segment's new stacks.

    Raises:
        FormatError: The stacks have too many.
    """
    if letters > _MAX_LETTERS or calls > _MAX_CALLS:
        raise FormatError("pprof", 0, f"stacks of more than {_MAX_CALLS:,} calls or {_MAX_LETTERS:,} letters")


def _numbers(
    stack: npt.NDArray[np.int32], calls: Sequence[Sequence[int]], shown: _ShownFrames, book: StoredStackCache
) -> npt.NDArray[np.int64]:
    """Return the number of each sample's stack in the tenant's stack cache. New stacks are added to the cache.

    Args:
        calls: Frames of each stack.
    """
    found = np.zeros(len(calls), np.int64)
    letters = 0
    for number in np.unique(stack[stack >= 0]).tolist():
        frames = [shown[each] for each in calls[number]]
        facts, kept = _facts(frames), frames[:_MAX_FRAMES]
        letters += facts.letters + sum([each.letters for each in kept])
        _check_stacks(0, letters)
        found[number] = book.number(hash_of_pieces([each.piece for each in kept]), kept, facts)
    return found


def _facts(frames: Sequence[ShownFrame]) -> StackFacts:
    """Return what the database stores about a stack besides its frames: the files of its leaf and of its truncation.
    The input is its frames, outermost first.
    """
    if not frames:
        return StackFacts()
    cut = next((frame.build for frame in frames if not frame.is_marker), None) if frames[0].is_cut else None
    return StackFacts(frames[-1].build, frames[-1].bare, cut)


def is_bare(frame: Frame) -> bool:
    """Return True if the function of a frame has no name."""
    return not frame.lines or _BARE.search(frame.title) is not None


def _build(parts: Parts, frame: Frame) -> tuple[str, str] | None:
    if frame.module < 0:
        return None
    module = parts.modules[frame.module]
    return cut_name(module.path), cut_name(module.build_id)


def _builds(book: StoredStackCache, stacks: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> list[BuildCost]:
    """Return the cost of samples in each object file: of the file's code, of its functions without names, and of stacks
    that were truncated in it.
    """
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
    """Return the number of a series: a hash of its set of labels."""
    return hash_of([part for pair in labels for part in pair])[0]


def hash_of(texts: Iterable[str]) -> tuple[int, int]:
    """Return a 128-bit hash of a list of texts as two 64-bit halves. The length stands in front of each text, so
    different lists have different hashes.
    """
    return hash_of_pieces(map(piece_of, texts))


def hash_of_pieces(pieces: Iterable[bytes]) -> tuple[int, int]:
    """Return the hash (see hash_of()) of texts that already have their length in front of them."""
    return _HALVES.unpack(hashlib.blake2b(b"".join(pieces), digest_size=_HALVES.size).digest())
