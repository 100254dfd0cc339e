"""OpenTelemetry's profiles signal as a file: the message ProfilesData of opentelemetry-proto 1.10
(opentelemetry/proto/profiles/v1development/profiles.proto), which is also the body of an export request. The signal is
in development: 1.9 numbers the fields of a sample differently, so readers of that version find no values here.

A process is a resource. Each value type becomes a separate profile, because a profile has only one. A sample is the sum
of all samples of one thread with one stack, because some backends refuse several values a sample. Threads and the
user's labels are attributes of samples. The first entry of each table of the dictionary is empty; index 0 stands for
it.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.depth_limit import distinct_stacks, limit_stack_depth
from pyprof.exporters.display_names import UNKNOWN
from pyprof.exporters.protobuf_encoding import encode_data, encode_number, encode_packed, encode_varint
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo
from pyprof.model.thread_identity import ProcessKey
from pyprof.model.untrusted_text import encode_text

# Field numbers of ProfilesDictionary.
MAPPING, LOCATION, FUNCTION, LINK, STRING, ATTRIBUTE, STACK = range(1, 8)

_SERVICE = "service.name"
_FRAME_TYPES = {FrameKind.NATIVE: "native", FrameKind.INLINE: "native", FrameKind.KERNEL: "kernel"}
Sums = list[tuple[int, int, int]]
"""Samples of a profile, summed by thread and stack: (thread, leaf node, value) of each sum."""


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    """Write a profile as OpenTelemetry's ProfilesData. Threads are attributes of samples, whatever the options say."""
    profile = limit_stack_depth(profile, distinct_stacks(profile))
    tables = _Dictionary(profile)
    processes: defaultdict[ProcessKey, list[int]] = defaultdict(list)
    for at, thread in enumerate(profile.threads):
        processes[thread.process_key].append(at)
    sums: defaultdict[tuple[ProcessKey, int], Sums] = defaultdict(list)
    for index, leaf, values in profile.totals():
        for column, value in enumerate(values.tolist()):
            if value:
                sums[profile.threads[index].process_key, column].append((index, leaf, value))
    for key, threads in processes.items():
        found = [
            _profile(profile, tables, column, key, sums[key, column]) for column in range(len(profile.value_types))
        ]
        scope = encode_data(1, encode_data(1, b"pyprof")) + b"".join(encode_data(2, each) for each in found)
        out.write(encode_data(1, encode_data(1, _resource(profile.threads[threads[0]])) + encode_data(2, scope)))
    out.write(encode_data(2, tables.encoded()))


def _resource(thread: ThreadInfo) -> bytes:
    name = _text(thread.process)
    # the OpenTelemetry specification requires this form
    service = dict(thread.labels).get(_SERVICE) or f"unknown_service:{name}"
    named = {_SERVICE: service, "process.executable.name": name}
    texts = [
        encode_data(1, encode_data(1, encode_text(key)) + encode_data(2, encode_data(1, encode_text(value))))
        for key, value in named.items()
        if value
    ]
    return b"".join(texts) + encode_data(1, encode_data(1, b"process.pid") + encode_data(2, _integer(thread.pid)))


def _profile(profile: Profile, tables: _Dictionary, column: int, process: ProcessKey, sums: Sums) -> bytes:
    kind = profile.value_types[column]
    identity = repr((profile.title, profile.start_ns, profile.duration_ns, process, kind)).encode("utf-8", "replace")
    fields = [
        encode_data(1, tables.value_type(kind.type, kind.unit)),
        *(encode_data(2, tables.sample(*each)) for each in sums),
        encode_varint(3 << 3 | 1) + struct.pack("<Q", max(profile.start_ns, 0)),
        encode_number(4, profile.duration_ns),
    ]
    period = next((each for each in reversed(profile.value_types) if each.unit == "nanoseconds"), None)
    if period is not None and profile.period_ns:
        fields += [encode_data(5, tables.value_type(period.type, period.unit)), encode_number(6, profile.period_ns)]
    fields.append(encode_data(7, hashlib.sha256(identity).digest()[:16]))
    return b"".join(fields)


class _Dictionary:
    """The tables that all profiles of an OpenTelemetry file share (ProfilesDictionary). Each entry has the index that
    its first use gave it.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._rows: dict[int, dict[bytes, int]] = {table: {b"": 0} for table in range(MAPPING, STACK + 1)}
        self._mappings = [self._mapping(info) for info in profile.modules]
        self._locations = [self._location(frame) for frame in profile.frames]
        self._threads = [self._thread(thread) for thread in profile.threads]
        self._stacks = {0: 0}
        self._parent, self._frame = profile.parent.tolist(), profile.frame.tolist()

    def encoded(self) -> bytes:
        return b"".join(encode_data(table, row) for table, rows in self._rows.items() for row in rows)

    def value_type(self, type_: str, unit: str) -> bytes:
        return encode_number(1, self._string(type_)) + encode_number(2, self._string(unit))

    def sample(self, thread: int, leaf: int, value: int) -> bytes:
        return encode_number(1, self._stack(leaf)) + encode_packed(2, self._threads[thread]) + encode_packed(4, [value])

    def _stack(self, leaf: int) -> int:
        at = self._stacks.get(leaf)
        if at is None:
            locations, node = [], leaf
            while node > 0:
                locations.append(self._locations[self._frame[node]])
                node = self._parent[node]
            at = self._stacks[leaf] = self._row(STACK, encode_packed(1, locations))
        return at

    def _row(self, table: int, row: bytes) -> int:
        rows = self._rows[table]
        return rows.setdefault(row, len(rows))

    def _string(self, text: str) -> int:
        return self._row(STRING, encode_text(text))

    def _attribute(self, key: str, value: bytes) -> int:
        """Return the index of an OpenTelemetry attribute. `value` is an encoded AnyValue."""
        return self._row(ATTRIBUTE, encode_number(1, self._string(key)) + encode_data(2, value))

    def _texts(self, texts: Mapping[str, str]) -> list[int]:
        return [self._attribute(key, encode_data(1, encode_text(value))) for key, value in texts.items() if value]

    def _thread(self, thread: ThreadInfo) -> list[int]:
        labels = {name: value for name, value in thread.labels if name != _SERVICE}
        return [
            self._attribute("thread.id", _integer(thread.tid)),
            *self._texts({"thread.name": thread.name, **labels}),
        ]

    def _mapping(self, info: ModuleInfo) -> int:
        ids = self._texts({"process.executable.build_id.gnu": info.build_id})
        places = [encode_number(1, info.start), encode_number(2, info.end), encode_number(3, info.offset)]
        return self._row(
            MAPPING,
            b"".join([*places, encode_number(4, self._string(info.path)), encode_packed(5, ids) if ids else b""]),
        )

    def _location(self, frame: Frame) -> int:
        """Return the index of a frame in the location table of the OpenTelemetry file.

        Unnamed code keeps its address and mapping. Markers and interpreters' frames are lines without an address.
        """
        lines: Sequence[Line] = frame.lines
        code = frame.kind not in (FrameKind.MARKER, FrameKind.INTERPRETER)
        if not lines and (not code or frame.kind is FrameKind.KERNEL):
            lines = (Line(frame.title or UNKNOWN, frame.title or UNKNOWN),)
        fields = []
        if code:
            fields += [
                encode_number(1, self._mappings[frame.module] if frame.module >= 0 else 0),
                encode_number(2, frame.lookup),
            ]
        fields += [
            encode_data(3, encode_number(1, self._function(line)) + encode_number(2, line.line)) for line in lines
        ]
        kinds = self._texts({"profile.frame.type": _FRAME_TYPES.get(frame.kind, "")})
        return self._row(LOCATION, b"".join(fields) + (encode_packed(4, kinds) if kinds else b""))

    def _function(self, line: Line) -> int:
        name = line.function or line.system_name or UNKNOWN
        texts = (name, line.system_name or name, line.file or "")
        return self._row(FUNCTION, b"".join(encode_number(at, self._string(text)) for at, text in enumerate(texts, 1)))


def _text(text: str) -> str:
    return text or "process"


def _integer(value: int) -> bytes:
    """Encode an integer as an OpenTelemetry AnyValue. A 0 is written too, unlike in other protobuf fields."""
    return encode_varint(3 << 3) + encode_varint(value)
