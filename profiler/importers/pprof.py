"""Reader of pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not.

Samples have no times. The labels pid, tid, thread and process state the thread of a sample; all other labels become
labels of that thread. Samples with other labels belong to another thread. A file may have as many sets of labels as
samples. Beyond a limit, further sets are dropped. The primary value is the file's default, otherwise the last one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterable
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.importers import pprof_tables
from pyprof.importers.pprof_tables import AT_ONCE, FrameTables, Samples, read_samples, text_at
from pyprof.importers.profile_builder import NOBODY, About, Builder
from pyprof.importers.protobuf import MAX_ROWS, Grouped, decode_repeated, parse_numbers, to_signed
from pyprof.lazy_dataclasses import replace
from pyprof.model.integer_array_operations import largest_sum
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Profile, ThreadInfo, ValueType
from pyprof.model.stack_digest import SIZE, of_stack
from pyprof.model.summary import Summary
from pyprof.model.thread_identity import LONGEST, MOST, RESERVED, Labels

_GZIP = b"\x1f\x8b"
_MAX_BYTES = 1 << 28
"""Maximum size of an inflated pprof file in bytes."""
_MAX_TIMES, _FEW_BYTES = 50, 1 << 20
"""Limits for the inflated size of gzipped data from an untrusted sender, as a multiple of its compressed size and in
bytes.

The larger of the two limits counts. The agent's segments inflate to twice their size.
"""
_MAX_SUM = 1 << 60
"""Maximum sum of the values in a pprof file. It leaves room for sums over several files in an int64."""
_MAX_STACKS, _MAX_STACK = 100_000, 1 << 10
"""Maximum number of stacks that are cached from one pprof file to the next, and maximum size in bytes of a cached
stack.
"""
_MAX_TYPES = 100
"""Maximum number of value types in a pprof file. A pushed file becomes a separate segment for each."""
MAX_LABELLED = 10_000
"""Maximum number of different sets of labels that the samples of a pprof file may have."""

SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, STRING, TIME, DURATION, PERIOD, DEFAULT = (
    *(1, 2, 3, 4, 5, 6),
    *(9, 10, 12, 14),
)


def is_pprof(data: bytes) -> bool:
    return data.startswith(_GZIP) or data[:1] == b"\x0a"


def read_pprof(data: bytes, title: str) -> Profile:
    """Read a pprof file as a Profile.

    Raises:
        FormatError: The file is broken.
    """
    builder = Builder()
    return builder.build(read_into(builder, data, title))


def read_into(
    builder: Builder,
    data: bytes,
    title: str,
    since_ns: int | None = None,
    wanted: Callable[[tuple[ValueType, ...]], bool] = lambda _: True,
    max_bytes: int | None = None,
) -> About:
    """Add the samples of one pprof file to a profile builder. A file that is refused adds nothing.

    Args:
        since_ns: Time from which sample times count, None for the start that the file states.
        wanted: Function that returns True if a file with these value types is to be read. Other files add nothing.
        max_bytes: Maximum inflated size, as for inflate().

    Raises:
        FormatError: The file is broken.
        OverflowError: A number is too large for a Profile.
        WorkLimitExceeded: The file exceeds the builder's limits.
        TooManyRows: The file exceeds the builder's limits.
    """
    return _Reader(inflate(data, max_bytes), builder).about(title, since_ns, wanted)


def inflate(data: bytes, max_bytes: int | None = None) -> bytes:
    """Inflate gzipped data. Other data is returned unchanged.

    Gzip states the inflated size at its end. Data from an untrusted sender that states more than _MAX_TIMES its
    compressed size is refused before anything is inflated. At most the stated size is inflated.

    Args:
        max_bytes: Maximum inflated size of data from an untrusted sender. None for a user's file, whose maximum is
            _MAX_BYTES.

    Raises:
        FormatError: The data is broken or too large.
    """
    if not is_gzipped(data):
        return data
    if max_bytes is None:
        max_bytes = _MAX_BYTES
    else:
        max_bytes, stated = min(max_bytes, max(_MAX_TIMES * len(data), _FEW_BYTES)), read_stated_size(data)
        if stated > max_bytes:
            raise FormatError(
                "gzip", 0, f"it breaks off, or inflates to more than {max_bytes:,} bytes: it says {stated:,}"
            )
        max_bytes = stated + 1  # zlib reads the end of the stream only if there is room for more
    inflate = zlib.decompressobj(wbits=31)
    try:
        found = inflate.decompress(data, max_bytes)
    except zlib.error as error:
        raise FormatError("gzip", 0, str(error)) from None
    if not inflate.eof:
        raise FormatError("gzip", len(found), f"it breaks off, or inflates to more than {max_bytes:,} bytes")
    return found


def is_gzipped(data: bytes) -> bool:
    return data.startswith(_GZIP)


def read_stated_size(data: bytes) -> int:
    """Return the inflated size in bytes that gzipped data states at its end. It is modulo 4 GiB (RFC 1952, ISIZE)."""
    return int.from_bytes(data[-4:], "little") if is_gzipped(data) else len(data)


class _Reader:
    """A reader of one pprof file. If the file begins with digests of its stacks, its tables of locations are read only
    if an unknown stack needs them.
    """

    def __init__(self, data: bytes, builder: Builder) -> None:
        little = builder.work_limit
        self._message = Grouped(data, MAX_ROWS if little is None else little.samples)
        self._builder = builder
        self._message.read(pprof_tables.STACKS, (LOCATION, FUNCTION))
        self._rows, self._header = self._message.rows, self._message.numbers
        self._strings: list[str] = []
        self._read_strings()
        if not self._strings or self._strings[0]:
            raise FormatError("pprof", 0, "the table of strings does not begin with an empty one")
        self._left_out: set[str] = set()
        self._frames = FrameTables(builder, self._strings)
        self._threads = 0
        self._frame_of: dict[int, int] | None = None
        self._labels: dict[bytes, tuple[str, str]] = {}

    def _read_strings(self) -> None:
        rows = self._rows.get(STRING, ())
        self._strings += [text.decode("utf-8", "surrogateescape") for text in rows[len(self._strings) :]]

    def about(self, title: str, since_ns: int | None, wanted: Callable[[tuple[ValueType, ...]], bool]) -> About:
        types = [parse_numbers(row) for row in self._rows.get(SAMPLE_TYPE, ())]
        kinds = [ValueType(self._text(row.get(1, 0)), self._text(row.get(2, 0))) for row in types]
        if not 0 < len(kinds) <= _MAX_TYPES:
            raise FormatError("pprof", len(kinds), f"types of values: one to {_MAX_TYPES} may be there")
        default = self._text(self._header.get(DEFAULT, 0))
        primary = next((at for at, kind in enumerate(kinds) if kind.type == default), len(kinds) - 1)
        order = [*(at for at in range(len(kinds)) if at != primary), primary]
        start_ns = to_signed(self._header.get(TIME, 0))
        ordered = tuple(kinds[at] for at in order)
        length_ns, period_ns = to_signed(self._header.get(DURATION, 0)), to_signed(self._header.get(PERIOD, 0))
        about = About(title, ordered, (), start_ns, length_ns, period_ns)
        about.check()
        if wanted(ordered):
            self._samples(order, 0 if since_ns is None else start_ns - since_ns)
        notes = [make_note("read_from_pprof")]
        if self._left_out:
            notes.append(make_note("labels_left_out", labels=", ".join(sorted(self._left_out)[:5])))
        known = pprof_tables.FIELD in self._rows
        done = pprof_tables.read_summary(self._rows[pprof_tables.FIELD][-1]) if known else Summary()
        return replace(about, notes=tuple(notes), done=done, evidence=known)

    def _text(self, at: int) -> str:
        return text_at(self._strings, at)

    def _read_frames(self, wanted: Container[int] | None) -> dict[int, int]:
        """Return frame numbers by the ids of the pprof file's locations. `wanted` are the ids to read, None for all."""
        self._message.read()
        self._read_strings()
        return self._frames.read_frames(self._rows.get(FUNCTION, ()), self._rows.get(LOCATION, ()), wanted)

    def _samples(self, order: list[int], time_ns: int) -> None:
        digests = self._digests()
        stated = iter(digests)
        self._frames.read_modules(self._rows.get(MAPPING, ()))
        if not digests:
            self._frame_of = self._read_frames(None)
        total = 0.0
        for some in read_samples(self._rows.get(SAMPLE, ()), self._thread):
            stacks = self._stacks_of(list(islice(stated, len(some))), some)
            amounts, begin = decode_repeated(some.values)
            if (wrong := np.flatnonzero(np.diff(begin) != len(order))).size:
                raise FormatError("pprof", int(wrong[0]), "a sample has more or fewer values than there are types")
            in_order = amounts.view(np.int64).reshape(-1, len(order))[:, order]
            total += largest_sum(in_order)
            if total >= _MAX_SUM:
                raise FormatError("pprof", 0, "values that are too large together")
            self._builder.add_samples(stacks, some.threads, time_ns, in_order)

    def _digests(self) -> list[bytes]:
        """Return the digests that the pprof file states for its samples' stacks. The list is empty unless there is one
        for each sample.
        """
        stated = self._rows.get(pprof_tables.STACKS, (b"",))[-1]
        fits = len(stated) == SIZE * len(self._rows.get(SAMPLE, ()))
        return [stated[at : at + SIZE] for at in range(0, len(stated), SIZE)] if fits else []

    def _stacks_of(self, digests: list[bytes], some: Samples) -> list[int]:
        """Return the tree node of the stack of each sample in the pprof file. Frames are read only for stacks whose
        digests are not known.
        """
        known, of = self._builder.by_digest, self._builder.digests
        found: list[int | None] = list(map(known.get, digests)) if digests else [None] * len(some)
        new = [at for at, node in enumerate(found) if node is None]
        if not new:
            return [node for node in found if node is not None]
        self._builder.check_work(unknown=len(new))
        ids, edges = decode_repeated(some.stack_keys(new))
        self._builder.check_work(calls=len(ids))
        frames, bounds = self._looked_up(ids), edges.tolist()
        for at, node, (first, end) in zip(new, self._stacks(frames, bounds), pairwise(bounds), strict=True):
            found[at] = node
            if digests and of_stack(of[each] for each in frames[first:end].tolist()) == digests[at]:
                if len(known) >= _MAX_STACKS:
                    known.clear()
                known[digests[at]] = node
        return [node for node in found if node is not None]

    def _looked_up(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the frame numbers for an array of location ids in the pprof file.

        Of a file that is small enough to be read in one batch, only the locations in use are decoded.

        Raises:
            FormatError: A location does not exist.
        """
        if self._frame_of is None:
            small = sum(map(len, self._rows.get(SAMPLE, ()))) <= AT_ONCE
            self._frame_of = self._read_frames(set(ids.tolist()) if small else None)
        frames = self._frame_of
        keys, indices = np.array(list(frames), np.uint64), np.array(list(frames.values()), np.int32)
        order = np.argsort(keys)
        place = np.searchsorted(keys[order], ids)
        unknown = place >= len(keys)
        unknown[~unknown] = keys[order][place[~unknown]] != ids[~unknown]
        if unknown.any():
            raise FormatError("pprof", int(ids[unknown.argmax()]), "a location that does not exist")
        found: npt.NDArray[np.int32] = indices[order][place]
        return found

    def _stacks(self, frames: npt.NDArray[np.int32], bounds: list[int]) -> list[int]:
        """Add the given stacks of the pprof file to the tree, and return the node of each.

        Args:
            frames: Frames of all stacks, one stack after another, each from its leaf to its root.
            bounds: Index of the first frame of each stack in `frames`, and the number of frames.
        """
        known, data, found = self._builder.stacks, frames.tobytes(), []
        width = frames.itemsize
        for first, end in pairwise(bounds):
            row = data[first * width : end * width]
            node = known.get(row)
            if node is None:
                node = self._builder.add_stack(frames[first:end][::-1].tolist())
                if len(row) <= _MAX_STACK:
                    if len(known) >= _MAX_STACKS:
                        known.clear()
                    known[row] = node
            found.append(node)
        return found

    def _label(self, data: bytes) -> tuple[str, str]:
        """Parse a label of a pprof sample. The result is cached, because threads have many labels in common."""
        found = self._labels.get(data)
        if found is None:
            row = parse_numbers(data)
            key = self._text(row.get(1, 0))
            found = key, self._text(row[2]) if row.get(2) else str(to_signed(row.get(3, 0)))
            if len(self._labels) < MAX_LABELLED:
                self._labels[data] = found
        return found

    def _thread(self, rows: Iterable[bytes]) -> int:
        self._threads += 1
        self._builder.check_work(threads=self._threads)
        return self._builder.add_thread(self._info(dict(map(self._label, rows))))

    def _info(self, labels: dict[str, str]) -> ThreadInfo:
        if not labels:
            return NOBODY
        known = self._builder.labels
        own: Labels = tuple(sorted((name, value) for name, value in labels.items() if name not in RESERVED))
        if own not in known and (len(known) >= MAX_LABELLED or not _fit(own)):
            self._left_out |= {name[:LONGEST] for name, _ in own}
            own = ()
        known.add(own)
        pid, tid = (_number(labels.get(key, "")) for key in ("pid", "tid"))
        return ThreadInfo(pid, tid, labels.get("thread", ""), labels.get("process", ""), labels=own)


def _fit(labels: Labels) -> bool:
    """Return True if the labels of a pprof sample respect the limits for their number and length."""
    return len(labels) <= MOST and all(len(text) <= LONGEST for pair in labels for text in pair)


def _number(text: str) -> int:
    """Parse a label's text as a number; 0 for a text that is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
