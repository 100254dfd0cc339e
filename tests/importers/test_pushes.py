"""Tests of pushes from other agents: samples by service and labels, and complete refusal of invalid requests."""

from __future__ import annotations

import base64
import gzip
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import orjson
import pytest

from pyprof.errors import FormatError
from pyprof.exporters.protobuf_encoding import encode_data, encode_number, encode_packed
from pyprof.importers import otlp, pprof, pyroscope_parca_requests
from pyprof.importers.profile_builder import PushedProfile, split_by_value_type
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import FrameKind, Profile, ValueType
from tests.exporters.profiles import golden
from tests.exporters.support import export
from tests.fuzz.readers import pushed as use
from tests.fuzz.seeds import pushes as seeds
from tests.support import missing

messages: Any = None
with suppress(ImportError):
    messages = import_module("opentelemetry.proto.profiles.v1development.profiles_pb2")

PPROF = export("pprof", golden())
LABELS = (("service_name", "shop"), ("zone", "eu1"), ("__name__", "process_cpu"))


def message(nested: bool) -> bytes:
    pairs = b"".join(
        encode_data(1, encode_data(1, name.encode()) + encode_data(2, value.encode())) for name, value in LABELS
    )
    return encode_data(1 + nested, (encode_data(1, pairs) if nested else pairs) + encode_data(2, encode_data(1, PPROF)))


def as_json(nested: bool) -> bytes:
    pairs = [{"name": name, "value": value} for name, value in LABELS]
    sample = {"rawProfile": base64.b64encode(PPROF).decode(), "ID": "x"}
    return orjson.dumps({"series": [{"labels": {"labels": pairs} if nested else pairs, "samples": [sample]}]})


def form() -> bytes:
    head = b'--b1\r\nContent-Disposition: form-data; name="profile"; filename="p"\r\n\r\n'
    config = b'\r\n--b1\r\nContent-Disposition: form-data; name="sample_type_config"\r\n\r\n{}\r\n--b1--\r\n'
    return head + PPROF + config


NAMED = {"name": "shop{zone=eu1}", "from": "1700000000", "until": "1700000010"}
SENT: dict[str, Callable[[], list[PushedProfile]]] = {
    "ingest": lambda: pyroscope_parca_requests.read_pyroscope_ingest(
        {**NAMED, "format": "pprof"}, "application/octet-stream", PPROF
    ),
    "ingest, a form": lambda: pyroscope_parca_requests.read_pyroscope_ingest(
        NAMED, "multipart/form-data; boundary=b1", form()
    ),
    "push.v1": lambda: pyroscope_parca_requests.read_pyroscope_push("application/proto", message(False)),
    "push.v1, JSON": lambda: pyroscope_parca_requests.read_pyroscope_push(
        "application/json; charset=utf-8", as_json(False)
    ),
    "WriteRaw": lambda: pyroscope_parca_requests.read_parca_write("application/x-protobuf", message(True)),
    "WriteRaw, JSON": lambda: pyroscope_parca_requests.read_parca_write("application/json", as_json(True)),
}


def sums(profile: Profile) -> Counter[tuple[str, tuple[str, ...]]]:
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for thread, leaf, values in profile.totals():
        path = tuple(frame.title for frame in profile.path(leaf))
        found[profile.threads[thread].name, path] += int(values[-1])
    return found


@pytest.mark.parametrize("way", SENT)
def test_each_way_brings_the_profile_with_service_and_labels(way: str) -> None:
    (found,) = SENT[way]()
    assert found.service == "shop"
    assert sums(found.profile) == sums(pprof.read_pprof(PPROF, "shop"))
    assert sum(sums(found.profile).values()) == golden().total > 0
    assert found.profile.value_types == golden().value_types
    for thread in found.profile.threads:
        assert dict(thread.labels) | {"zone": "eu1"} == dict(thread.labels)
        assert "__name__" not in dict(thread.labels)


def test_profile_without_times_has_those_of_the_request() -> None:
    untimed = gzip.decompress(PPROF).replace(encode_number(9, golden().start_ns), b"", 1)
    (found,) = pyroscope_parca_requests.read_pyroscope_ingest({**NAMED, "format": "pprof"}, "", untimed)
    assert found.profile.start_ns == 1_700_000_000 * 10**9
    (timed,) = pyroscope_parca_requests.read_pyroscope_ingest({**NAMED, "format": "pprof"}, "", PPROF)
    assert timed.profile.start_ns == golden().start_ns


def test_kinds_of_a_heap_profile_come_apart_each_with_its_count() -> None:
    kinds = [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")]
    values = np.repeat(golden().values[:, :1], 4, axis=1) * np.array([1, 10, 100, 1000])
    heap = replace(golden(), value_types=tuple(ValueType(*kind) for kind in kinds), values=values)
    found = list(split_by_value_type(heap))
    assert [tuple(kind.type for kind in each.value_types) for each in found] == [
        ("alloc_objects", "alloc_space"),
        ("inuse_objects", "inuse_space"),
    ]
    assert [each.total for each in found] == [int(values[:, 1].sum()), int(values[:, 3].sum())]


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "format": (
        lambda: pyroscope_parca_requests.read_pyroscope_ingest({"name": "a", "format": "jfr"}, "", b""),
        "'jfr' is not read",
    ),
    "name": (
        lambda: pyroscope_parca_requests.read_pyroscope_ingest({"name": "{a=b}", "format": "pprof"}, "", b""),
        "no application",
    ),
    "form": (
        lambda: pyroscope_parca_requests.read_pyroscope_ingest(
            {"name": "a"}, "multipart/form-data; boundary=x", b"--x\r\n"
        ),
        "does not end",
    ),
    "no JSON": (lambda: pyroscope_parca_requests.read_pyroscope_push("application/json", b"{"), "json"),
    "no base64": (
        lambda: pyroscope_parca_requests.read_pyroscope_push(
            "application/json", b'{"series": [{"labels": [], "samples": [{"rawProfile": "%"}]}]}'
        ),
        "no base64",
    ),
    "no list": (
        lambda: pyroscope_parca_requests.read_parca_write("application/json", b'{"series": [7]}'),
        "no list of objects",
    ),
    "broken": (
        lambda: pyroscope_parca_requests.read_pyroscope_push(
            "", encode_data(1, encode_data(2, encode_data(1, PPROF[:50])))
        ),
        "breaks off",
    ),
    "too many": (
        lambda: pyroscope_parca_requests.read_pyroscope_push("", encode_data(1, encode_data(2, b"") * 1001)),
        "more than 1,000 profiles",
    ),
    "long label": (
        lambda: pyroscope_parca_requests.read_pyroscope_ingest(
            {"name": f"a{{k={'v' * 1001}}}", "format": "pprof"}, "", PPROF
        ),
        "1 to 1000 printable letters",
    ),
    "many labels": (
        lambda: pyroscope_parca_requests.read_pyroscope_ingest(
            {"name": f"a{{{','.join(f'k{n}=v' for n in range(65))}}}", "format": "pprof"}, "", PPROF
        ),
        "64 at most",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_push_that_is_wrong_is_refused_with_its_reason(what: str) -> None:
    send, said = WRONG[what]
    with pytest.raises(FormatError, match=said):
        send()


def test_bombs_together_are_refused_at_the_limit_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyroscope_parca_requests, "MAX_BYTES", 3 * len(gzip.decompress(PPROF)) - 1)
    row = encode_data(
        1, encode_data(1, encode_data(1, b"a") + encode_data(2, b"b")) + encode_data(2, encode_data(1, PPROF))
    )
    assert len(pyroscope_parca_requests.read_pyroscope_push("", 2 * row)) == 2
    with pytest.raises(FormatError, match="more than"):
        pyroscope_parca_requests.read_pyroscope_push("", 3 * row)


def test_gzip_within_gzip_is_refused() -> None:
    row = encode_data(
        1,
        encode_data(1, encode_data(1, b"a") + encode_data(2, b"b"))
        + encode_data(2, encode_data(1, gzip.compress(PPROF))),
    )
    with pytest.raises(FormatError, match="gzip within gzip"):
        pyroscope_parca_requests.read_pyroscope_push("", row)


def test_otlp_brings_the_stacks_sums_and_threads_that_were_written() -> None:
    found = otlp.read_otlp(export("otlp", golden()))
    expected = golden()
    assert len(found) == len({thread.process_key for thread in expected.threads})  # no profile of counts is added
    assert {each.profile.value_types[-1] for each in found} == {expected.value_types[-1]}
    assert sum(each.profile.total for each in found) == expected.total
    threads = {(thread.pid, thread.tid, thread.name) for each in found for thread in each.profile.threads}
    used = {expected.threads[at] for at in np.unique(expected.thread[expected.values[:, -1] != 0])}
    assert threads == {(thread.pid, thread.tid, thread.name) for thread in used}
    assert {each.profile.start_ns for each in found} == {expected.start_ns}
    by_name = Counter[str]()
    for each in found:  # pprof stores the address of the call
        by_name.update({cost.name: cost.own for cost in each.profile.top(1000) if "0x" not in cost.name})
    assert by_name == {cost.name: cost.own for cost in expected.top(1000) if "0x" not in cost.name}
    assert len(by_name) > 5
    kinds = {frame.title: frame.kind for frame in expected.frames if frame.kind is not FrameKind.INLINE}
    for frame in (frame for each in found for frame in each.profile.frames if "0x" not in frame.title):
        assert frame.kind is kinds[frame.title]


def request(**sample: Any) -> bytes:
    """Return an OTLP request of counts with a period of 10 ms, built with the classes of opentelemetry-proto."""
    if messages is None:
        missing("needs opentelemetry-proto: pip install -e .[dev]")
    whole = messages.ProfilesData()
    tables = whole.dictionary
    tables.string_table.extend(["", "samples", "count", "cpu", "nanoseconds", "work", "a.py", "region"])
    for name in ("mapping", "location", "function", "link", "stack", "attribute"):
        getattr(tables, f"{name}_table").add()
    tables.function_table.add(name_strindex=5, filename_strindex=6)
    tables.location_table.add().lines.add(function_index=1, line=7)
    tables.stack_table.add(location_indices=[1])
    attribute = tables.attribute_table.add(key_strindex=7)
    attribute.value.string_value = "eu"
    resource = whole.resource_profiles.add()
    given = resource.resource.attributes.add(key="service.name")
    given.value.string_value = "shop"
    profile = resource.scope_profiles.add().profiles.add(time_unix_nano=10**18, duration_nano=10**9, period=10**7)
    profile.sample_type.type_strindex, profile.sample_type.unit_strindex = 1, 2
    profile.period_type.type_strindex, profile.period_type.unit_strindex = 3, 4
    profile.samples.add(**sample)
    return bytes(whole.SerializeToString())


SHAPES = {
    "one sum": {"values": [3]},
    "times alone": {"timestamps_unix_nano": [1, 2, 3]},
    "values and times": {"values": [1, 1, 1], "timestamps_unix_nano": [1, 2, 3]},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_counts_with_a_period_are_time_in_each_shape_of_a_sample(shape: str) -> None:
    (found,) = otlp.read_otlp(request(stack_index=1, attribute_indices=[1], **SHAPES[shape]))
    assert found.service == "shop"
    assert found.profile.values.tolist() == [[3, 30_000_000]]
    assert found.profile.value_types == (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))
    assert (found.profile.start_ns, found.profile.duration_ns) == (10**18, 10**9)
    assert [dict(thread.labels) for thread in found.profile.threads] == [{"region": "eu"}]
    (frame,) = found.profile.frames
    assert [(line.function, line.file, line.line) for line in frame.lines] == [("work", "a.py", 7)]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"stack_index": 9, "values": [1]}, "a stack that does not exist"),
        ({"stack_index": 1, "values": [1], "attribute_indices": [9]}, "an? attribute that does not exist"),
        ({"stack_index": 1, "values": [-1]}, "values below 0"),
        ({"stack_index": 1}, "before 1.10"),
    ],
)
def test_otlp_that_lies_is_refused(sample: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        otlp.read_otlp(request(**sample))


@pytest.mark.parametrize(
    ("limit", "most", "said"), [("_MAX_CALLS", 3, "more than 3 calls"), ("MAX_LETTERS", 5, "more than 5 letters")]
)
def test_otlp_whose_tables_are_much_when_they_are_written_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, said: str
) -> None:
    whole = export("otlp", golden())
    otlp.read_otlp(whole)
    monkeypatch.setattr(otlp, limit, most)
    with pytest.raises(FormatError, match=said):
        otlp.read_otlp(whole)


def test_layout_before_1_10_is_refused_and_not_read_as_nothing() -> None:
    """Use the layout before 1.10, in which values are field 2 and attributes field 3."""
    whole = request(stack_index=1, values=[50])
    now, before = encode_number(1, 1) + encode_packed(4, [50]), encode_number(1, 1) + encode_packed(2, [50])
    assert whole.count(now) == 1
    with pytest.raises(FormatError, match=r"before 1\.10|attribute that does not exist"):
        otlp.read_otlp(whole.replace(now, before))


def test_mutated_pushes_are_read_or_refused() -> None:
    """Mutate pushes as the fuzzer does. use() catches FormatError only."""
    rng, tried = random.Random(20), 0
    for seed in seeds():
        use(seed)
        for _ in range(200):
            changed = bytearray(seed)
            for _ in range(rng.randrange(1, 6)):
                changed[rng.randrange(2, len(changed))] = rng.randrange(256)
            use(bytes(changed[: rng.randrange(2, len(changed) + 1)] if rng.random() < 0.3 else changed))
            tried += 1
    assert tried > 1000
