"""Reader of OpenTelemetry's profiles signal as agents send it: ExportProfilesServiceRequest of opentelemetry-proto
1.10, with the fields of ProfilesData (opentelemetry/proto/profiles/v1development/profiles.proto).

Before 1.10 the fields of a sample had other numbers under the same names. Such a request seems to have no values and is
refused. If a resource has its samples twice, as counts and in the unit of their period, the counts are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from pyprof.errors import FormatError
from pyprof.importers.pprof import MAX_LABELLED
from pyprof.importers.pprof_tables import MAX_LETTERS
from pyprof.importers.profile_builder import SERVICE, About, Builder, PushedProfile, split_labels
from pyprof.importers.protobuf import (
    group_fields,
    parse_fields,
    parse_numbers,
    read_columns,
    read_fixed64,
    read_indices,
    read_texts,
    to_signed,
)
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.thread_identity import Labels
from pyprof.model.unwind_result import Trust

Entry = TypeVar("Entry")
# Field numbers of ProfilesDictionary.
MAPPING, LOCATION, FUNCTION, _LINK, STRING, ATTRIBUTE, STACK = range(1, 8)
MAX_PROFILES = 1000
_MAX_CALLS = 1 << 22
"""Maximum number of calls in the stacks of all samples of an OpenTelemetry request. The request states a stack only
once, but the output has it for each sample.
"""
_MAX_VALUE = (1 << 62) - 1
_COUNT = ValueType("samples", "count")
_KINDS = {"native": FrameKind.NATIVE, "kernel": FrameKind.KERNEL}
"""Kinds of frames by OpenTelemetry's attribute profile.frame.type. Other types are interpreters."""
_BUILD_IDS = (
    "process.executable.build_id.gnu",
    "process.executable.build_id.go",
    "process.executable.build_id.htlhash",
)
_OF_PROCESS = ("process.pid", "process.executable.name", "process.executable.path")
_LEFT_OUT = ("cpu.logical_number", "process.command_args", "process.command_line")
"""OpenTelemetry attributes that do not become labels: they differ between samples, or may contain secrets."""


def read_otlp(data: bytes) -> list[PushedProfile]:
    """Read the profiles of an OpenTelemetry export request.

    Raises:
        FormatError: The request is broken or too large.
    """
    dictionary = _Dictionary(b"".join(read_texts(data, 2)))
    found: list[PushedProfile] = []
    try:
        for resource in read_texts(data, 1):
            found += _resource(resource, dictionary)
            if len(found) > MAX_PROFILES:
                raise FormatError("otlp", len(found), f"more than {MAX_PROFILES:,} profiles in one request")
    except OverflowError as error:
        raise FormatError("otlp", 0, str(error)) from None
    return found


def _resource(message: bytes, dictionary: _Dictionary) -> Iterator[PushedProfile]:
    given = dict(
        pair for row in read_texts(message, 1) for each in read_texts(row, 1) for pair in dictionary.pair(each)
    )
    service, labels = split_labels(
        (name, value) for name, value in given.items() if name not in (*_OF_PROCESS, *_LEFT_OUT)
    )
    process = given.get("process.executable.name", "") or given.get("process.executable.path", "").rpartition("/")[2]
    owner = ThreadInfo(_number(given.get("process.pid", "")), 0, "", process, labels=labels)
    profiles = [_OtlpProfile(each, dictionary) for scope in read_texts(message, 2) for each in read_texts(scope, 2)]
    kinds = {each.kind for each in profiles}
    for each in profiles:
        if not (each.kind.unit == "count" and each.period in kinds and each.period != each.kind):
            yield PushedProfile(service, each.built(service, owner, dictionary))


class _Dictionary:
    """The tables that all profiles of an OpenTelemetry request share (ProfilesDictionary)."""

    def __init__(self, data: bytes) -> None:
        rows, _ = group_fields(data)
        self._letters = self._calls = 0
        self._strings = [text.decode("utf-8", "replace") for text in rows.get(STRING, ())]
        self._attributes = [self._attribute(row) for row in rows.get(ATTRIBUTE, ())]
        self._functions = [
            (self.text(name) or self.text(system), self.text(system) or self.text(name), self.text(file) or None)
            for name, system, file in zip(*read_columns(rows.get(FUNCTION, ()), (1, 2, 3)), strict=True)
        ]
        self.modules = [self._module(row) for row in rows.get(MAPPING, ())]
        self.frames = [self._frame(row) for row in rows.get(LOCATION, ())]
        self._stacks = rows.get(STACK, [])

    def text(self, at: int) -> str:
        return _entry(self._strings, at, "text") if at else ""

    def attribute(self, at: int) -> tuple[str, str]:
        return _entry(self._attributes, at, "attribute")

    def stack(self, at: int) -> list[int]:
        """Return the locations of a stack in an OpenTelemetry request, innermost first."""
        return read_indices(_entry(self._stacks, at, "stack"), 1) if at else []

    def count(self, calls: int) -> None:
        """Count the calls of one more sample's stack, and check the limit of calls in a request.

        Raises:
            FormatError: The samples have too many calls.
        """
        self._calls += calls
        if self._calls > _MAX_CALLS:
            raise FormatError("otlp", self._calls, f"samples of more than {_MAX_CALLS:,} calls together")

    def pair(self, message: bytes) -> Iterator[tuple[str, str]]:
        """Yield the key and value of an OpenTelemetry KeyValue. Yield nothing if the value is neither text nor
        number.
        """
        key = b"".join(read_texts(message, 1)[-1:]).decode("utf-8", "replace") or self.text(
            parse_numbers(message).get(3, 0)
        )
        value = self._value(b"".join(read_texts(message, 2)[-1:]))
        if key and value:
            yield key, value

    def _attribute(self, message: bytes) -> tuple[str, str]:
        return self.text(parse_numbers(message).get(1, 0)), self._value(b"".join(read_texts(message, 2)[-1:]))

    def _value(self, message: bytes) -> str:
        for key, value in parse_fields(message):
            if key == 1 and isinstance(value, bytes):
                return value.decode("utf-8", "replace")
            if key in (2, 3) and isinstance(value, int):
                return str(to_signed(value))
            if key == 8 and isinstance(value, int):
                return self.text(value)
        return ""

    def _module(self, row: bytes) -> ModuleInfo:
        found = parse_numbers(row)
        given = dict(self.attribute(at) for at in read_indices(row, 5))
        build_id = next((given[name] for name in _BUILD_IDS if given.get(name)), "")
        span = found.get(1, 0), found.get(2, 0), found.get(3, 0)
        return ModuleInfo(self.text(found.get(4, 0)), build_id, *span, True, False)

    def _frame(self, row: bytes) -> Frame:
        found = parse_numbers(row)
        at, address = found.get(1, 0), found.get(2, 0)
        module = _entry(self.modules, at, "mapping") if at else None
        rel = (address - module.start + module.offset) % (1 << 64) if module is not None else 0
        title = f"{module.name}+{rel:#x}" if module is not None and module.path else f"{address:#x}"
        lines = tuple(self._line(parse_numbers(each)) for each in read_texts(row, 3))
        title = lines[-1].function if lines else title
        self._letters += sum(len(each.function) + len(each.system_name) + len(each.file or "") for each in lines)
        self._letters += len(module.path) + len(module.build_id) if module is not None else 0
        if self._letters > MAX_LETTERS:
            raise FormatError("otlp", 0, f"names of more than {MAX_LETTERS:,} letters, counted for each location")
        given = dict(self.attribute(each) for each in read_indices(row, 4)).get("profile.frame.type", "")
        kind = _KINDS.get(given, FrameKind.INTERPRETER) if given else FrameKind.NATIVE
        if not given and not address and module is None:
            kind = FrameKind.MARKER if title.startswith("[") else FrameKind.INTERPRETER
        shown = () if kind is FrameKind.MARKER else lines
        return Frame(kind, address, address, rel, at if module is not None else -1, shown, Trust.CONTEXT, title)

    def _line(self, row: dict[int, int]) -> Line:
        name, system_name, file = _entry(self._functions, row.get(1, 0), "function")
        return Line(name, system_name, 0, file, max(to_signed(row.get(2, 0)), 0))


@dataclass(frozen=True, slots=True)
class _OtlpSample:
    stack: int
    attributes: tuple[int, ...]
    value: int
    count: int


class _OtlpProfile:
    """One profile of an OpenTelemetry request.

    Attributes:
        kind: Type of the profile's values.
        period: Type of the profile's period.
    """

    def __init__(self, message: bytes, dictionary: _Dictionary) -> None:
        rows, header = group_fields(message)
        self.kind, self.period = (self._type(rows.get(key, [b""])[-1], dictionary) for key in (1, 5))
        self._start_ns, self._length_ns = read_fixed64(message, 3), header.get(4, 0)
        self._period_ns = max(to_signed(header.get(6, 0)), 0) if self.period.unit == "nanoseconds" else 0
        self._samples = [self._sample(row) for row in rows.get(2, ())]

    def _type(self, row: bytes, dictionary: _Dictionary) -> ValueType:
        found = parse_numbers(row)
        return ValueType(dictionary.text(found.get(1, 0)), dictionary.text(found.get(2, 0)))

    def _sample(self, row: bytes) -> _OtlpSample:
        values = [to_signed(each) for each in read_indices(row, 4)]
        times = sum(len(each) for each in read_texts(row, 5)) // 8
        if not values and not times:
            raise FormatError("otlp", 0, "a sample without values and times: opentelemetry-proto before 1.10 wrote it?")
        value = sum(values) if values else times
        if not 0 <= value <= _MAX_VALUE:
            raise FormatError("otlp", 0, "values below 0, or too large")
        return _OtlpSample(parse_numbers(row).get(1, 0), tuple(read_indices(row, 2)), value, times)

    def built(self, service: str, owner: ThreadInfo, dictionary: _Dictionary) -> Profile:
        """Build a Profile from one profile of an OpenTelemetry request.

        Raises:
            FormatError: The profile refers to missing table entries.
            OverflowError: A number is too large for a Profile.
        """
        builder = Builder()
        frames: dict[int, int] = {}
        threads: dict[tuple[int, ...], int] = {}
        nodes: dict[int, int] = {}
        depths: dict[int, int] = {}
        counted = self.kind.unit == "count" and self._period_ns > 0
        values = []
        for sample in self._samples:
            if sample.stack not in nodes:
                locations = dictionary.stack(sample.stack)
                for at in locations:
                    if at not in frames:
                        frame = _entry(dictionary.frames, at, "location")
                        frames[at] = builder.add_frame(_moved(frame, dictionary, builder))
                depths[sample.stack] = len(locations)
                nodes[sample.stack] = builder.add_stack(frames[at] for at in reversed(locations))
            dictionary.count(depths[sample.stack])
            if sample.attributes not in threads:
                threads[sample.attributes] = builder.add_thread(
                    self._thread(sample.attributes, owner, dictionary, builder)
                )
            each = (
                sample.value if counted else sample.count or max(round(sample.value / (self._period_ns or 1 << 62)), 1)
            )
            values.append((each, sample.value * self._period_ns if counted else sample.value))
        owners = [threads[sample.attributes] for sample in self._samples]
        amounts = np.array(values, np.int64).reshape(-1, 2)
        builder.add_samples([nodes[sample.stack] for sample in self._samples], owners, 0, amounts)
        kinds = (_COUNT, self.period if counted else self.kind)
        return builder.build(About(service, kinds, (), self._start_ns, self._length_ns, max(self._period_ns, 1)))

    def _thread(
        self, attributes: Sequence[int], owner: ThreadInfo, dictionary: _Dictionary, builder: Builder
    ) -> ThreadInfo:
        given = dict(dictionary.attribute(at) for at in attributes)
        tid, name = _number(given.pop("thread.id", "")), given.pop("thread.name", "")
        _, own = split_labels(
            (key, value) for key, value in given.items() if key not in (*_LEFT_OUT, *_OF_PROCESS, *SERVICE)
        )
        labels: Labels = tuple(sorted((dict(own) | dict(owner.labels)).items()))
        if labels not in builder.labels and len(builder.labels) >= MAX_LABELLED:
            raise FormatError("otlp", len(builder.labels), f"more than {MAX_LABELLED:,} sets of attributes")
        builder.labels.add(labels)
        return ThreadInfo(owner.pid, tid, name, owner.process, labels=labels)


def _moved(frame: Frame, dictionary: _Dictionary, builder: Builder) -> Frame:
    """Return a frame for another builder: its module number is the one that the builder has for the same module."""
    return replace(frame, module=builder.add_module(dictionary.modules[frame.module])) if frame.module >= 0 else frame


def _entry(table: Sequence[Entry], at: int, what: str) -> Entry:
    if at >= len(table):
        raise FormatError("otlp", at, f"a {what} that does not exist")
    return table[at]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
