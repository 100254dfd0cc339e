"""pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not.

Samples have no times. Of labels pid, tid, thread and process make the thread; others are its labels. Samples with other
labels are those of another thread. A file may have as many labels as samples: then those that come late are left out.
The value that the file names as its default, else the last one, is the primary one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Container, Iterable
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.importers import evidence
from pyprof.importers.builder import NOBODY, About, Builder, MuchWork
from pyprof.importers.pprof_samples import AT_ONCE, Samples, samples
from pyprof.importers.protobuf import MOST_ROWS, Grouped, columns, fields, numbers, packed, repeated, signed
from pyprof.model.columns import largest_sum
from pyprof.model.labels import LONGEST, MOST, RESERVED, Labels
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.reasons import said
from pyprof.model.stack_digest import SIZE, of_frame, of_stack
from pyprof.model.summary import Summary
from pyprof.records import replace

_GZIP = b"\x1f\x8b"
_MOST_BYTES = 1 << 28
"""Bytes that a file may inflate to."""
_MOST_TIMES, _FEW_BYTES = 50, 1 << 20
"""What a stranger sends may inflate to so many times its own bytes, or to these. Segments do to 2 times."""
_MOST_SUM = 1 << 60
"""Of the values of a file: of several files together they are numbers yet."""
_MOST_STACKS, _LONGEST_STACK = 100_000, 1 << 10
"""Stacks that are remembered from file to file, and bytes of one."""
_MOST_TYPES = 100
"""Of values. A push is a segment for each."""
MOST_LETTERS = 1 << 28
"""Of the names of all locations: each is looked at whole for each location that has it."""
_NUMBER = rb"[\x80-\xff]{0,9}[\0-\x7f]"
_USUAL_LOCATION = re.compile(
    rb"\x08%(n)b(?:\x10%(n)b)?(?:\x18%(n)b)?"
    rb"\x22([\0-\x7f])(\x08%(n)b(?:\x10%(n)b)?)(?:\xc2\x3e([\0-\x7f])(.*))?" % {b"n": _NUMBER},
    re.DOTALL,
)
"""Of one function, its fields as they are usually written. Whether the sizes are right is for the caller."""
FunctionNames = tuple[str, str, str | None]
"""name, system_name, file."""
FunctionLine = tuple[FunctionNames, int]
_HEAD, _ID = (1, 2, 3), 1 << 3
"""Of a location: its id, its mapping's, its address."""
MOST_LABELLED = 10_000
"""Different labels together that samples may have."""

SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, STRING, TIME, DURATION, PERIOD, DEFAULT = (
    *(1, 2, 3, 4, 5, 6),
    *(9, 10, 12, 14),
)


def is_one(data: bytes) -> bool:
    return data.startswith(_GZIP) or data[:1] == b"\x0a"


def read(data: bytes, title: str) -> Profile:
    """Raises FormatError."""
    builder = Builder()
    return builder.build(read_into(builder, data, title))


def read_into(
    builder: Builder,
    data: bytes,
    title: str,
    since_ns: int | None = None,
    wanted: Callable[[tuple[ValueType, ...]], bool] = lambda _: True,
    most: int | None = None,
) -> About:
    """Samples of one file beside those that the builder has. since_ns: what their times are counted from; None: from
    the file's beginning. wanted: are values of such types? Of a file that is not, or is refused, no sample is added.
    most: as inflated() has it. Raises FormatError, OverflowError for numbers that no Profile holds, and MuchWork or
    TooManyRows where the builder says what may be done.
    """
    return _Reader(inflated(data, most), builder).about(title, since_ns, wanted)


def inflated(data: bytes, most: int | None = None) -> bytes:
    """What is not gzipped comes back as it is. most: bytes of what a stranger sends. It says at its end how many it
    inflates to: more than _MOST_TIMES its own are refused before anything is inflated, and no more are made than it
    says. None: a file, which has _MOST_BYTES. Raises FormatError.
    """
    if not is_gzipped(data):
        return data
    if most is None:
        most = _MOST_BYTES
    else:
        most, stated = min(most, max(_MOST_TIMES * len(data), _FEW_BYTES)), stated_size(data)
        if stated > most:
            raise FormatError("gzip", 0, f"it breaks off, or inflates to more than {most:,} bytes: it says {stated:,}")
        most = stated + 1  # its end is read when there is room for more
    inflate = zlib.decompressobj(wbits=31)
    try:
        found = inflate.decompress(data, most)
    except zlib.error as error:
        raise FormatError("gzip", 0, str(error)) from None
    if not inflate.eof:
        raise FormatError("gzip", len(found), f"it breaks off, or inflates to more than {most:,} bytes")
    return found


def is_gzipped(data: bytes) -> bool:
    return data.startswith(_GZIP)


def stated_size(data: bytes) -> int:
    """Bytes that it inflates to, as it says itself at its end (RFC 1952, ISIZE): of what is true, modulo 4 GiB."""
    return int.from_bytes(data[-4:], "little") if is_gzipped(data) else len(data)


class _Reader:
    """It reads up to the tables of locations where digests stand before them, and those only if it must."""

    def __init__(self, data: bytes, builder: Builder) -> None:
        little = builder.little
        self._message = Grouped(data, MOST_ROWS if little is None else little.samples)
        self._builder = builder
        self._message.read(evidence.STACKS, (LOCATION, FUNCTION))
        self._rows, self._header = self._message.rows, self._message.numbers
        self._strings: list[str] = []
        self._read_strings()
        if not self._strings or self._strings[0]:
            raise FormatError("pprof", 0, "the table of strings does not begin with an empty one")
        self._left_out: set[str] = set()
        self._letters = self._threads = 0
        self._modules: dict[int, int] = {}
        self._frame_of: dict[int, int] | None = None
        self._labels: dict[bytes, tuple[str, str]] = {}

    def _read_strings(self) -> None:
        rows = self._rows.get(STRING, ())
        self._strings += [text.decode("utf-8", "surrogateescape") for text in rows[len(self._strings) :]]

    def about(self, title: str, since_ns: int | None, wanted: Callable[[tuple[ValueType, ...]], bool]) -> About:
        types = [numbers(row) for row in self._rows.get(SAMPLE_TYPE, ())]
        kinds = [ValueType(self._text(row.get(1, 0)), self._text(row.get(2, 0))) for row in types]
        if not 0 < len(kinds) <= _MOST_TYPES:
            raise FormatError("pprof", len(kinds), f"types of values: one to {_MOST_TYPES} may be there")
        default = self._text(self._header.get(DEFAULT, 0))
        primary = next((at for at, kind in enumerate(kinds) if kind.type == default), len(kinds) - 1)
        order = [*(at for at in range(len(kinds)) if at != primary), primary]
        start_ns = signed(self._header.get(TIME, 0))
        ordered = tuple(kinds[at] for at in order)
        length_ns, period_ns = signed(self._header.get(DURATION, 0)), signed(self._header.get(PERIOD, 0))
        about = About(title, ordered, "", start_ns, length_ns, period_ns)
        about.check()
        if wanted(ordered):
            self._samples(order, 0 if since_ns is None else start_ns - since_ns)
        left_out = ", ".join(sorted(self._left_out)[:5])
        more = said("labels_left_out", labels=left_out) if self._left_out else ""
        known = evidence.FIELD in self._rows
        done = evidence.of_summary(self._rows[evidence.FIELD][-1]) if known else Summary()
        return replace(about, note=said("read_from_pprof", more=more), done=done, evidence=known)

    def _text(self, at: int) -> str:
        if at >= len(self._strings):
            raise FormatError("pprof", at, "a text that does not exist")
        return self._strings[at]

    def _mappings(self) -> dict[int, int]:
        """Index of the module by id."""
        found: dict[int, int] = {}
        for row in map(numbers, self._rows.get(MAPPING, ())):
            path, build_id = self._text(row.get(5, 0)), self._text(row.get(6, 0))
            span = row.get(2, 0), row.get(3, 0), row.get(4, 0)
            info = ModuleInfo(path, build_id, *span, bool(row.get(7)), bool(row.get(9)))
            found[row.get(1, 0)] = self._builder.module(info)
        return found

    def _frames(self, wanted: Container[int] | None) -> dict[int, int]:
        """Index of the frame by id of the location. wanted: ids; None: all."""
        self._message.read()
        self._read_strings()
        functions: dict[int, FunctionNames] = {}
        ids, *texts = columns(self._rows.get(FUNCTION, ()), (1, 2, 3, 4))
        self._text(max(map(max, texts)) if ids else 0)
        known_texts = self._strings.__getitem__
        for id_, name, system_name, file in zip(ids, *(map(known_texts, column) for column in texts), strict=True):
            functions[id_] = (name or system_name, system_name or name, file or None)
        spans = []
        lines: list[bytes] = []
        heads: list[bytes] = []
        for location in self._rows.get(LOCATION, ()):
            if wanted is not None and _id(location) not in wanted:
                continue
            first, found_by = len(lines), b""
            usual = _USUAL_LOCATION.fullmatch(location)
            if usual is not None and len(usual[2]) == usual[1][0] and len(usual[4] or b"") == (usual[3] or b"\0")[0]:
                lines.append(usual[2])
                heads.append(location[: usual.start(1) - 1])
                found_by = usual[4] or b""
            else:
                head = {}
                for key, value in fields(location):
                    if isinstance(value, int):
                        head[key] = value
                    elif key == 4:
                        lines.append(value)
                    elif key == evidence.FIELD:
                        found_by = value
                heads.append(b"".join(packed(key << 3) + packed(head[key]) for key in _HEAD if key in head))
            if len(lines) > MOST_ROWS:
                raise FormatError("pprof", len(lines), f"more than {MOST_ROWS:,} lines of locations")
            spans.append((first, len(lines), found_by))
        shown = self._lines(lines, functions)
        known = zip(*columns(heads, _HEAD), spans, strict=True)
        return {
            id_: self._known(address, self._modules.get(mapping, -1), tuple(shown[first:end]), found_by)
            for id_, mapping, address, (first, end, found_by) in known
        }

    def _lines(self, rows: list[bytes], functions: dict[int, FunctionNames]) -> list[FunctionLine]:
        ids, numbers_of = columns(rows, (1, 2))
        unknown = next((id_ for id_ in ids if id_ not in functions), None)
        if unknown is not None:
            raise FormatError("pprof", unknown, "a function that does not exist")
        return [(functions[id_], max(signed(line), 0)) for id_, line in zip(ids, numbers_of, strict=True)]

    def _known(self, address: int, module: int, lines: tuple[FunctionLine, ...], found_by: bytes) -> int:
        """The number of a frame. Files of one program have the same ones: they are made once."""
        known = self._builder.known
        key = (address, module, lines, found_by)
        number = known.get(key)
        if number is None:
            number = known[key] = self._builder.frame(self._frame(address, module, lines, found_by))
            where = self._builder.modules[module] if module >= 0 else None
            shown = [(name, system_name, file or "", line) for (name, system_name, file), line in lines]
            self._letters += len(where.path + where.build_id) if where is not None else 0
            self._letters += sum(len(text) for *texts, _ in shown for text in texts)
            if self._letters > MOST_LETTERS:
                raise FormatError("pprof", 0, f"names of more than {MOST_LETTERS:,} letters, counted for each location")
            self._builder.digests.setdefault(number, of_frame(address, where, shown, found_by))
        return number

    def _frame(self, address: int, module: int, lines: tuple[FunctionLine, ...], found_by: bytes) -> Frame:
        known = self._builder.modules[module] if module >= 0 else None
        rel = (address - known.start + known.offset) % (1 << 64) if known is not None else 0
        title = f"{known.name}+{rel:#x}" if known is not None else f"{address:#x}"
        kind = FrameKind.NATIVE
        named = tuple(Line(name, system_name, 0, file, line) for (name, system_name, file), line in lines)
        if named and not address and module < 0:
            kind = FrameKind.MARKER if named[-1].function.startswith("[") else FrameKind.INTERPRETER
        title = named[-1].function if named else title
        found = evidence.of_frame(found_by, kind, title)
        shown = () if found.kind is FrameKind.MARKER else named
        return Frame(found.kind, address, address, rel, module, shown, found.trust, title, found.mark)

    def _samples(self, order: list[int], time_ns: int) -> None:
        digests = self._digests()
        stated = iter(digests)
        self._modules = self._mappings()
        if not digests:
            self._frame_of = self._frames(None)
        total = 0.0
        for some in samples(self._rows.get(SAMPLE, ()), self._thread):
            stacks = self._stacks_of(list(islice(stated, len(some))), some)
            amounts, begin = repeated(some.values)
            if (wrong := np.flatnonzero(np.diff(begin) != len(order))).size:
                raise FormatError("pprof", int(wrong[0]), "a sample has more or fewer values than there are types")
            in_order = amounts.view(np.int64).reshape(-1, len(order))[:, order]
            total += largest_sum(in_order)
            if total >= _MOST_SUM:
                raise FormatError("pprof", 0, "values that are too large together")
            self._builder.add(stacks, some.threads, time_ns, in_order)

    def _little(self, threads: int, unknown: int) -> None:
        """Raises MuchWork."""
        most = self._builder.little
        if most is not None and (threads > most.threads or unknown > most.unknown):
            raise MuchWork

    def _digests(self) -> list[bytes]:
        """Of the stacks, as the file states them. [] where it does not, or not one for each sample."""
        stated = self._rows.get(evidence.STACKS, (b"",))[-1]
        fits = len(stated) == SIZE * len(self._rows.get(SAMPLE, ()))
        return [stated[at : at + SIZE] for at in range(0, len(stated), SIZE)] if fits else []

    def _stacks_of(self, digests: list[bytes], some: Samples) -> list[int]:
        """The node of each stack. digests: stated ones; frames are read of stacks whose digest is not known."""
        known, of = self._builder.by_digest, self._builder.digests
        found: list[int | None] = list(map(known.get, digests)) if digests else [None] * len(some)
        new = [at for at, node in enumerate(found) if node is None]
        if not new:
            return [node for node in found if node is not None]
        self._little(0, len(new))
        ids, edges = repeated(some.stacks(new))
        frames, bounds = self._looked_up(ids), edges.tolist()
        for at, node, (first, end) in zip(new, self._stacks(frames, bounds), pairwise(bounds), strict=True):
            found[at] = node
            if digests and of_stack(of[each] for each in frames[first:end].tolist()) == digests[at]:
                if len(known) >= _MOST_STACKS:
                    known.clear()
                known[digests[at]] = node
        return [node for node in found if node is not None]

    def _looked_up(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """The frames of locations by their ids. Of a file whose samples are all read together no others are asked for.
        Raises FormatError.
        """
        if self._frame_of is None:
            small = sum(map(len, self._rows.get(SAMPLE, ()))) <= AT_ONCE
            self._frame_of = self._frames(set(ids.tolist()) if small else None)
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

    def _stacks(self, frames: npt.NDArray[np.int32], edges: list[int]) -> list[int]:
        """The node of each stack. frames: of all, innermost first."""
        known, data, found = self._builder.stacks, frames.tobytes(), []
        width = frames.itemsize
        for first, end in pairwise(edges):
            row = data[first * width : end * width]
            node = known.get(row)
            if node is None:
                node = self._builder.stack(frames[first:end][::-1].tolist())
                if len(row) <= _LONGEST_STACK:
                    if len(known) >= _MOST_STACKS:
                        known.clear()
                    known[row] = node
            found.append(node)
        return found

    def _label(self, data: bytes) -> tuple[str, str]:
        """Threads have many labels in common: each is read once."""
        found = self._labels.get(data)
        if found is None:
            row = numbers(data)
            key = self._text(row.get(1, 0))
            found = key, self._text(row[2]) if row.get(2) else str(signed(row.get(3, 0)))
            if len(self._labels) < MOST_LABELLED:
                self._labels[data] = found
        return found

    def _thread(self, rows: Iterable[bytes]) -> int:
        self._threads += 1
        self._little(self._threads, 0)
        return self._builder.thread(self._info(dict(map(self._label, rows))))

    def _info(self, labels: dict[str, str]) -> ThreadInfo:
        if not labels:
            return NOBODY
        known = self._builder.labels
        own: Labels = tuple(sorted((name, value) for name, value in labels.items() if name not in RESERVED))
        if own not in known and (len(known) >= MOST_LABELLED or not _fit(own)):
            self._left_out |= {name[:LONGEST] for name, _ in own}
            own = ()
        known.add(own)
        pid, tid = (_number(labels.get(key, "")) for key in ("pid", "tid"))
        return ThreadInfo(pid, tid, labels.get("thread", ""), labels.get("process", ""), labels=own)


def _fit(labels: Labels) -> bool:
    """Are they as few and as short as labels are?"""
    return len(labels) <= MOST and all(len(text) <= LONGEST for pair in labels for text in pair)


def _id(location: bytes) -> int:
    """Of a location; it stands first, as it is usually written."""
    if len(location) > 2 and location[0] == _ID:
        if location[1] < 0x80:
            return location[1]
        if location[2] < 0x80:
            return location[1] & 0x7F | location[2] << 7
    return numbers(location).get(1, 0)


def _number(text: str) -> int:
    """0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
