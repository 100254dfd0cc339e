"""pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped, ids sequential from 1.

Callers' addresses are already adjusted to the call (Frame.lookup). Thread and process are labels, never frames: `pprof
-tagroot=process,thread` makes roots of them. The user's labels are labels too. A sample whose interpreter frames could
not all be matched to native frames has a marker frame and the label merge ("partial, 1 run unplaced"). Every label is a
string, because pprof drops a numeric 0. The primary value is last and is named in default_sample_type.

The part that a reader needs if it knows all stacks by their digests comes first; the tables of functions and locations
come after it.

Fields 1000 and 1001 are pyprof's own, and other readers skip them: how each frame was found (in a Location), what the
recording did, and digests of stacks (in the Profile). importers/pprof_tables.py reads them. The values are texts rather
than enum numbers, because numbers may change. docs/formats.md has the layout.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.depth_limit import distinct_stacks, limit_stack_depth
from pyprof.exporters.display_names import UNKNOWN
from pyprof.exporters.protobuf_encoding import encode_data, encode_number, encode_packed, encode_varint
from pyprof.model import stack_digest
from pyprof.model.marker_frames import MarkKind
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo
from pyprof.model.summary import Summary
from pyprof.model.untrusted_text import dump_json, encode_text
from pyprof.model.unwind_result import Trust

# Field numbers of message Profile.
SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, STRING_TABLE = 1, 2, 3, 4, 5, 6
TIME_NANOS, DURATION_NANOS, PERIOD_TYPE, PERIOD, COMMENT, DEFAULT_SAMPLE_TYPE = 9, 10, 11, 12, 13, 14

_TOGETHER = 1 << 10
"""Number of pprof samples that are compressed in one call of zlib. A call costs as much as compressing a sample."""
_SHARED_OBJECT = re.compile(r"\.so($|[._][0-9]+)")


EXTRA_FIELD = 1000
"""Number of the protobuf field for pyprof's own data in a pprof Location and in the pprof Profile."""
MAX_LACKS = 100
"""Maximum number of modules' problems that pyprof's own field in the pprof Profile states."""
STACKS = 1001
"""Number of pyprof's own field in the pprof Profile with the digest of each sample's stack, in the order of the samples
(model/stack_digest.py).
"""


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    profile = limit_stack_depth(profile, distinct_stacks(profile))
    # no file name and no time in the header, so that equal profiles give equal bytes
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0) as packed_out:
        tables = PprofTables(profile, options.evidence)
        types = [tables.value_type(value_type.type, value_type.unit) for value_type in profile.value_types]
        labels = [tables.labels(thread) if options.thread_labels else b"" for thread in profile.threads]
        partial = _merges(profile, tables)
        header, first, mappings = _header(profile, tables), len(tables.strings), len(tables.rows)
        location_of = [encode_varint(tables.location(frame)) for frame in profile.frames]
        strings = map(encode_text, tables.strings)
        packed_out.write(b"".join(encode_data(STRING_TABLE, text) for text in islice(strings, first)))
        packed_out.write(b"".join(encode_data(SAMPLE_TYPE, value_type) for value_type in types))
        digests = bytearray()
        samples = _samples(profile, tables, location_of, (labels, partial), digests)
        while some := b"".join(islice(samples, _TOGETHER)):
            packed_out.write(some)
        packed_out.write(b"".join((*tables.rows[:mappings], header)))
        if options.evidence:
            packed_out.write(encode_summary(profile.summary) + encode_data(STACKS, bytes(digests)))
        packed_out.write(b"".join(tables.rows[mappings:]))
        packed_out.write(b"".join(encode_data(STRING_TABLE, text) for text in strings))


def _merges(profile: Profile, tables: PprofTables) -> dict[int, bytes]:
    """Return an encoded pprof label for each marker frame that says why interpreter frames were merged only in part, by
    the index of the frame.
    """
    return {
        at: tables.label("merge", frame.title.strip("[]").removeprefix("merge: "))
        for at, frame in enumerate(profile.frames)
        if frame.mark is not None and frame.mark.kind is MarkKind.MERGE
    }


def _samples(
    profile: Profile,
    tables: PprofTables,
    location_of: list[bytes],
    labelled: tuple[list[bytes], dict[int, bytes]],
    digests: bytearray,
) -> Iterator[bytes]:
    """Yield the samples of a pprof file: each is the sum of all samples of one thread with one stack.

    A stack without frames has no locations in pprof either.

    Args:
        labelled: Encoded labels by the index of the thread, and by the index of the frame.
        digests: List to which the digest of each stack is added if evidence is written.
    """
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()
    labels, partial = labelled
    for thread, leaf, values in profile.totals():
        stack, parts, merge = [], [], b""
        node = leaf
        while node > 0:
            frame = frame_of[node]
            stack.append(location_of[frame])
            parts.append(frame)
            merge = partial.get(frame, merge)
            node = parent[node]
        if tables.digests:
            digests += stack_digest.of_stack(map(tables.digests.__getitem__, parts))
        yield encode_data(
            SAMPLE, encode_data(1, b"".join(stack)) + encode_packed(2, values.tolist()) + labels[thread] + merge
        )


def _header(profile: Profile, tables: PprofTables) -> bytes:
    primary = profile.value_types[-1]
    period_type = next((t for t in reversed(profile.value_types) if t.unit == "nanoseconds"), None)
    fields = [encode_number(TIME_NANOS, profile.start_ns), encode_number(DURATION_NANOS, profile.duration_ns)]
    if period_type is not None and profile.period_ns:
        fields.append(encode_data(PERIOD_TYPE, tables.value_type(period_type.type, period_type.unit)))
        fields.append(encode_number(PERIOD, profile.period_ns))
    comments = [f"pyprof: {profile.title}", *(note.text for note in profile.summary.notes)]
    fields.append(encode_packed(COMMENT, [tables.string(text) for text in comments]))
    fields.append(encode_number(DEFAULT_SAMPLE_TYPE, tables.string(primary.type)))
    return b"".join(fields)


class PprofTables:
    """The strings, mappings, functions and locations of a pprof file, each with the id that its first use gave it.

    Attributes:
        rows: Encoded MAPPING, FUNCTION and LOCATION fields. Each stands after the fields to which it refers.
        digests: If evidence is written, the digest of each frame for which location() was called, in that order.
    """

    def __init__(self, profile: Profile, evidence: bool = False) -> None:
        self.profile = profile
        self._evidence = evidence
        self.rows: list[bytes] = []
        self.digests: list[bytes] = []
        self.strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str, str], int] = {}
        self._locations: dict[tuple[int, int, tuple[tuple[int, int], ...], bytes], int] = {}
        self._mapping_of: dict[int, int] = {}
        for id_, module in enumerate(order_modules(profile.modules), 1):
            self._mapping_of[module] = id_
            self.rows.append(encode_data(MAPPING, self._mapping(id_, profile.modules[module])))

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def value_type(self, type_: str, unit: str) -> bytes:
        return encode_number(1, self.string(type_)) + encode_number(2, self.string(unit))

    def labels(self, thread: ThreadInfo) -> bytes:
        own = dict(thread.labels)
        own |= {"pid": str(thread.pid), "tid": str(thread.tid), "thread": thread.name, "process": thread.process}
        return b"".join(self.label(key, value) for key, value in own.items())

    def label(self, key: str, value: str) -> bytes:
        """Encode a label as a field of a pprof sample. The result is empty for an empty value, which pprof would read
        as the number 0.
        """
        return (
            encode_data(3, encode_number(1, self.string(key)) + encode_number(2, self.string(value)))
            if key and value
            else b""
        )

    def _mapping(self, id_: int, module: ModuleInfo) -> bytes:
        fields = [
            encode_number(1, id_),
            encode_number(2, module.start),
            encode_number(3, module.end),
            encode_number(4, module.offset),
        ]
        fields += [encode_number(5, self.string(module.path)), encode_number(6, self.string(module.build_id))]
        fields += [
            encode_number(7, module.has_functions),
            encode_number(8, module.has_lines),
            encode_number(9, module.has_lines),
        ]
        fields.append(encode_number(10, module.has_lines))
        return b"".join(fields)

    def location(self, frame: Frame) -> int:
        """Return the id of a frame's location in the pprof file.

        Unnamed code keeps its address and mapping, without a line. Markers and interpreters' frames are lines without
        an address.
        """
        lines = frame.lines
        if not lines and frame.kind not in (FrameKind.NATIVE, FrameKind.INLINE):
            lines = (Line(frame.title or UNKNOWN, frame.title or UNKNOWN),)
        code = frame.kind not in (FrameKind.MARKER, FrameKind.INTERPRETER)
        mapping = self._mapping_of.get(frame.module, 0) if code else 0
        address = frame.lookup if code else 0
        functions = tuple((self._function(line), line.line) for line in lines)
        more = b""
        if self._evidence:
            module = self.profile.modules[frame.module] if mapping else None
            found_by = encode_frame_message(frame)
            shown = ((*_names(line), line.line) for line in lines)
            self.digests.append(stack_digest.of_frame(address, module, shown, found_by))
            more = encode_data(EXTRA_FIELD, found_by)
        key = (mapping, address, functions, more)
        id_ = self._locations.get(key)
        if id_ is None:
            id_ = self._locations[key] = len(self._locations) + 1
            fields = [encode_number(1, id_), encode_number(2, mapping), encode_number(3, address)]
            fields += [
                encode_data(4, encode_number(1, function) + encode_number(2, line)) for function, line in functions
            ]
            self.rows.append(encode_data(LOCATION, b"".join(fields) + more))
        return id_

    def _function(self, line: Line) -> int:
        key = _names(line)
        id_ = self._functions.get(key)
        if id_ is None:
            id_ = self._functions[key] = len(self._functions) + 1
            fields = [encode_number(1, id_), *(encode_number(n, self.string(text)) for n, text in enumerate(key, 2))]
            self.rows.append(encode_data(FUNCTION, b"".join(fields)))
        return id_


def _names(line: Line) -> tuple[str, str, str]:
    name = line.function or line.system_name or UNKNOWN
    return name, line.system_name or name, line.file or ""


def order_modules(modules: Sequence[ModuleInfo]) -> list[int]:
    """Return the indices of the modules, with the main program first, because pprof takes the first mapping for the
    main program.

    The main program is the first module that is a file and not a shared object, as in pprof's own rule (profile.go,
    massageMappings).
    """
    for index, module in enumerate(modules):
        special = not module.path.startswith("/") or module.path.startswith(("/memfd:", "//anon", "/dev/", "/SYSV"))
        if not special and not _SHARED_OBJECT.search(module.name):
            return [index, *(other for other in range(len(modules)) if other != index)]
    return list(range(len(modules)))


def encode_frame(frame: Frame) -> bytes:
    """Encode how a frame was found (its source) as pyprof's own field of a pprof Location."""
    return encode_data(EXTRA_FIELD, encode_frame_message(frame))


def encode_frame_message(frame: Frame) -> bytes:
    """Encode how a frame was found (its source) as a protobuf message. The number of the field that contains the
    message is not included.
    """
    parts = [encode_data(1, Trust(frame.trust).label.encode()), encode_data(2, frame.kind.name.lower().encode())]
    mark = frame.mark
    if mark is not None:
        parts += [encode_data(3, mark.kind.name.lower().encode()), encode_data(4, mark.end.label.encode())]
        parts += [encode_number(5, mark.enough), encode_number(6, mark.unplaced), encode_number(7, mark.without_run)]
        parts.append(encode_number(8, mark.lacking))
    return b"".join(parts)


def encode_summary(summary: Summary) -> bytes:
    """Encode a recording's summary as pyprof's own field of the pprof Profile. It has parts of the JSON of --summary,
    and the debug information that object files lack.
    """
    whole = summary.to_json()
    names = ("rate_wanted", "rate_reached", "skipped", "errors", "stops", "not_stopped", "processor")
    lacks = [
        (module.path, module.build_id, problem.text, problem.hint, problem.reason)
        for module in summary.modules
        for problem in module.problems
    ]
    return encode_data(EXTRA_FIELD, dump_json({**{name: whole[name] for name in names}, "lacks": lacks[:MAX_LACKS]}))
