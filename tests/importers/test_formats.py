"""Tests of reading other profilers' files: exporting the result gives the original contents."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import orjson
import pytest

import pyprof
from pyprof.errors import RecordingError
from pyprof.exporters.base import ExportOptions
from pyprof.exporters.flamegraph_samples import pack_samples
from pyprof.exporters.protobuf_encoding import encode_data, encode_number, encode_varint
from pyprof.importers import pprof
from pyprof.importers.pprof import LOCATION, SAMPLE
from pyprof.importers.registry import load
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import FrameKind, ValueType
from tests.exporters.pprof_reader import fields, varints
from tests.exporters.pprof_reader import read as read_pprof
from tests.exporters.profiles import golden
from tests.exporters.support import THREADS, export
from tests.recording.support import stored


def file(folder: Path, data: bytes | str, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_format_is_detected_by_content_and_not_by_name(tmp_path: Path) -> None:
    for name in ("speedscope", "pprof", "collapsed"):
        found = load(file(tmp_path, export(name, golden()), "x.bin"))
        assert [note.reason for note in found.summary.notes] == [f"read_from_{name}"]
    assert load(stored(golden(), tmp_path, "x.bin")).frames == golden().frames


@pytest.mark.parametrize("name", ["speedscope", "pprof", "collapsed"])
def test_what_a_file_does_not_tell_is_not_made_up(name: str, tmp_path: Path) -> None:
    """Check that stack ends and frame trust stay empty, also in filtered and stored profiles, if the file lacks
    them.
    """
    found = load(file(tmp_path, export(name, golden())))
    kept = load(stored(found, tmp_path))
    for each in (found, found.filter(function="parse"), kept, kept.filter(function="parse")):
        assert (each.summary.trust, each.summary.ends, each.summary.shown.ends) == ({}, {}, {})
        assert each.summary.shown.total == each.total > 0
    known = pprof.read_pprof(export("pprof", golden(), ExportOptions(evidence=True)), "x")
    assert known.summary.trust
    assert known.summary.shown.ends


@pytest.mark.parametrize("name", ["speedscope", "collapsed"])
def test_gzipped_file_is_read_as_what_is_in_it(name: str, tmp_path: Path) -> None:
    data = export(name, golden(), THREADS)
    plain = load(file(tmp_path, data))
    packed = gzip.compress(data if isinstance(data, bytes) else data.encode())
    assert export("collapsed", load(file(tmp_path, packed))) == export("collapsed", plain)
    with pytest.raises(RecordingError, match=r"not a gzip file: .* breaks off"):
        load(file(tmp_path, packed[:-9]))


def test_collapsed_stacks_come_back(tmp_path: Path) -> None:
    text = export("collapsed", golden(), THREADS)
    assert export("collapsed", load(file(tmp_path, text))) == text


def test_lines_that_are_no_stacks_are_counted(tmp_path: Path) -> None:
    found = load(file(tmp_path, "main;f 3\r\nrubbish\nmain;g 2.5\n\n"))
    assert found.total == 5
    assert found.summary.notes == (make_note("read_from_collapsed"), make_note("lines_left_out", count=1))


def test_stack_that_is_long_is_known_as_one(tmp_path: Path) -> None:
    found = load(file(tmp_path, "main;" + "deep;" * 40_000 + "leaf 3\n"))
    assert (found.total, len(found.parent)) == (3, 40_003)


def test_what_has_no_times_has_no_timeline(tmp_path: Path) -> None:
    found = load(file(tmp_path, export("pprof", golden())))
    assert pack_samples(found, np.zeros(len(found.stack), np.int64)).header["count"] == 0


def test_pprof_comes_back(tmp_path: Path) -> None:
    data = export("pprof", golden())
    found = load(file(tmp_path, data))
    again, before = read_pprof(export("pprof", found)), read_pprof(data)
    assert again.sample_types == before.sample_types
    assert sorted(again.functions) == sorted(before.functions)
    assert sorted(address for _, address, _ in again.locations) == sorted(address for _, address, _ in before.locations)
    assert found.total == golden().total
    assert {(thread.pid, thread.tid, thread.name) for thread in found.threads} == {
        (thread.pid, thread.tid, thread.name) for thread in golden().threads
    }
    assert {module.build_id for module in found.modules} == {module.build_id for module in golden().modules}


def test_pprof_has_the_same_collapsed_stacks(tmp_path: Path) -> None:
    found = load(file(tmp_path, export("pprof", golden())))
    lines, expected = (export("collapsed", each).decode().splitlines() for each in (found, golden()))
    named = [line for line in expected if "+0x" not in line]  # pprof stores the address of the call
    assert len(named) > 6
    assert [line for line in lines if "+0x" not in line] == named


def test_speedscope_has_the_same_stacks(tmp_path: Path) -> None:
    found = load(file(tmp_path, export("speedscope", golden(), THREADS)))
    assert found.total == golden().total
    assert found.value_types[-1] == ValueType("time", "nanoseconds")
    weights = {cost.name: cost.own for cost in found.top(50)}
    assert weights == {cost.name: weights[cost.name] for cost in golden().top(50) if cost.name in weights}
    assert {thread.name for thread in found.threads} >= {"server (pid 100): main (tid 100)"}


def test_evented_speedscope_is_the_time_between_events(tmp_path: Path) -> None:
    events = [("O", 0, 0), ("O", 1, 2), ("C", 1, 5), ("C", 0, 6)]
    document = {
        "shared": {"frames": [{"name": "main"}, {"name": "f", "file": "f.c", "line": 3}]},
        "profiles": [
            {
                "type": "evented",
                "name": "thread",
                "unit": "milliseconds",
                "startValue": 0,
                "endValue": 6,
                "events": [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events],
            }
        ],
    }
    found = load(file(tmp_path, orjson.dumps(document)))
    assert {cost.name: cost.own for cost in found.top()} == {"main": 3_000_000, "f": 3_000_000}
    assert found.time_ns.tolist() == [0, 2_000_000, 5_000_000]


def test_library_loads_any_of_them(tmp_path: Path) -> None:
    profile = pyprof.load(file(tmp_path, "main;f 3\n", "a.txt"))
    assert [cost.name for cost in profile.top()] == ["f", "main"][: len(profile.top())]
    assert all(frame.kind is FrameKind.NATIVE for frame in profile.frames)


@pytest.mark.parametrize("data", [b"", b"\0\1\2", b"no stack\n", b"\x7fELF"])
def test_file_of_unknown_format_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="not a file of a known format"):
        load(file(tmp_path, data))


@pytest.mark.parametrize("unpacked", [False, True])
def test_fields_in_another_order_and_numbers_one_by_one_mean_the_same(unpacked: bool) -> None:
    """Use an unusual field order and unpacked numbers, for which the fast paths of the readers do not apply."""

    def again(message: bytes, key: int) -> bytes:
        if key not in (SAMPLE, LOCATION):
            return message
        parts = []
        for each, value in sorted(fields(message), key=lambda field: -field[0]):
            if isinstance(value, int):
                parts.append(encode_varint(each << 3) + encode_varint(value))
            elif unpacked and key == SAMPLE and each in (1, 2):
                parts += [encode_varint(each << 3) + encode_varint(number) for number in varints(value)]
            else:
                parts.append(encode_data(each, value))
        return b"".join(parts)

    whole = export("pprof", golden(), ExportOptions(evidence=True))
    changed = b"".join(
        encode_number(key, value) if isinstance(value, int) else encode_data(key, again(value, key))
        for key, value in fields(gzip.decompress(whole))
    )
    assert changed != gzip.decompress(whole)
    found, expected = pprof.read_pprof(changed, "x"), pprof.read_pprof(whole, "x")
    assert (found.frames, found.threads, found.modules) == (expected.frames, expected.threads, expected.modules)
    assert found.values.tolist() == expected.values.tolist()
    assert [found.path(leaf) for leaf in found.stack] == [expected.path(leaf) for leaf in expected.stack]


def test_rows_of_any_size_and_with_a_stack_after_their_labels_mean_the_same() -> None:
    """Use rows outside of the fast paths, which need stacks below 2^14 bytes and labels at the end of the row."""
    head = (
        encode_data(6, b"")
        + encode_data(6, b"cpu")
        + encode_data(6, b"one")
        + encode_data(6, b"two")
        + encode_data(1, encode_number(1, 1))
    )
    location = encode_data(4, encode_number(1, 1))
    label = {each: encode_data(3, encode_number(1, 2) + encode_number(2, each)) for each in (2, 3)}
    depths = 2, 20_000, 3, 150, 4

    def row(at: int, depth: int) -> bytes:
        packed, later = (depth, 0) if at % 2 == 0 else (1, depth - 1)
        parts = (
            encode_data(1, b"\1" * packed),
            encode_data(2, b"\1"),
            label[2 + at % 2],
            encode_data(1, b"\1" * later) if later else b"",
        )
        return encode_data(2, b"".join(parts))

    found = pprof.read_pprof(head + b"".join(row(at, depth) for at, depth in enumerate(depths)) + location, "x")
    assert [len(found.path(leaf)) for leaf in found.stack] == list(depths)
    assert [found.threads[each].labels for each in found.thread.tolist()] == [
        (("one", "one"),),
        (("one", "two"),),
        (("one", "one"),),
        (("one", "two"),),
        (("one", "one"),),
    ]
