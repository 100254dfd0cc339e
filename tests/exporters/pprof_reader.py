"""A reader of profile.proto that makes all checks of Parca's and Go's readers."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field

Fields = list[tuple[int, int | bytes]]


@dataclass
class Read:
    strings: list[str] = field(default_factory=list)
    sample_types: list[tuple[str, str]] = field(default_factory=list)
    samples: list[tuple[list[int], list[int], dict[str, str]]] = field(default_factory=list)
    mappings: list[dict[int, int]] = field(default_factory=list)
    locations: list[tuple[int, int, list[tuple[int, int]]]] = field(default_factory=list)
    functions: list[tuple[str, str, str]] = field(default_factory=list)
    header: dict[int, int | bytes] = field(default_factory=dict)


def varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value - (1 << 64) if value >> 63 else value
            value = shift = 0
    assert shift == 0


def fields(data: bytes) -> Fields:
    found: Fields = []
    at = 0

    def number() -> int:
        nonlocal at
        start = at
        while data[at] & 0x80:
            at += 1
        at += 1
        return next(varints(data[start:at]))

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
        else:
            assert tag & 7 == 2
            size = number()
            assert at + size <= len(data)
            found.append((tag >> 3, data[at : at + size]))
            at += size
    return found


def numbers(data: bytes) -> dict[int, int]:
    return {key: value for key, value in fields(data) if isinstance(value, int)}


def read(data: bytes) -> Read:
    assert data[:4] == b"\x1f\x8b\x08\x00", "no file name in the gzip header"
    assert data[4:8] == bytes(4), "no time in the gzip header"
    top = fields(gzip.decompress(data))
    out = Read()
    out.strings = [value.decode("utf-8") for key, value in top if key == 6 and isinstance(value, bytes)]
    assert out.strings[0] == ""
    assert len(set(out.strings)) == len(out.strings)
    ids: dict[int, list[int]] = {3: [], 4: [], 5: []}
    for key, value in top:
        if key in (1, 11) and isinstance(value, bytes):
            pair = numbers(value)
            named = (out.strings[pair.get(1, 0)], out.strings[pair.get(2, 0)])
            out.sample_types += [named] if key == 1 else []
        elif key == 2 and isinstance(value, bytes):
            out.samples.append(_sample(value, out.strings))
        elif key in (3, 4, 5) and isinstance(value, bytes):
            entry = numbers(value)
            ids[key].append(entry[1])
            if key == 3:
                out.mappings.append(entry)
            elif key == 4:
                lines = [numbers(line) for k, line in fields(value) if k == 4 and isinstance(line, bytes)]
                pairs = [(line[1], line.get(2, 0)) for line in lines]
                out.locations.append((entry.get(2, 0), entry.get(3, 0), pairs))
            else:
                name, system, file = (out.strings[entry.get(n, 0)] for n in (2, 3, 4))
                out.functions.append((name, system, file))
        if key >= 7:
            assert key not in out.header, "a second one means two files in one"
            out.header[key] = value
    for found in ids.values():
        assert found == list(range(1, len(found) + 1)), "ids are sequential"
    for mapping, _, pairs in out.locations:
        assert mapping <= len(out.mappings)
        assert all(1 <= function <= len(out.functions) for function, _ in pairs)
    for locations, values, _ in out.samples:
        assert len(values) == len(out.sample_types)
        assert all(1 <= location <= len(out.locations) for location in locations)
    return out


def _sample(data: bytes, strings: list[str]) -> tuple[list[int], list[int], dict[str, str]]:
    locations: list[int] = []
    values: list[int] = []
    labels: dict[str, str] = {}
    for key, value in fields(data):
        assert isinstance(value, bytes)
        if key == 1:
            locations += varints(value)
        elif key == 2:
            values += varints(value)
        elif key == 3:
            label = numbers(value)
            assert set(label) == {1, 2}, "labels are strings, never empty"
            assert strings[label[1]] not in labels
            labels[strings[label[1]]] = strings[label[2]]
    return locations, values, labels
