"""Tests of pushes by other projects' agents: stored completely and once, or refused completely."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.exporters.protobuf_encoding import encode_data
from pyprof.fleet.server.ingest.foreign_pushes import ForeignPush
from pyprof.lazy_dataclasses import replace
from tests.exporters.profiles import golden
from tests.exporters.support import export
from tests.server.serving import Served, served

pytestmark = pytest.mark.system

NOW = time.time_ns() - 60 * 10**9
PROFILE = replace(golden(), start_ns=NOW, time_ns=golden().time_ns - golden().start_ns + NOW)
PPROF, OTLP = export("pprof", PROFILE), export("otlp", PROFILE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("receiving") / "data") as client:
        yield client


def series(service: str, pprof: bytes, within: bool = False) -> bytes:
    pairs = [{"name": "service_name", "value": service}, {"name": "env", "value": "prod"}]
    sample = {"rawProfile": base64.b64encode(pprof).decode()}
    return json.dumps({"series": [{"labels": {"labels": pairs} if within else pairs, "samples": [sample]}]}).encode()


def message(service: str) -> bytes:
    pair = encode_data(1, b"service_name") + encode_data(2, service.encode())
    return encode_data(2, encode_data(1, encode_data(1, pair)) + encode_data(2, encode_data(1, PPROF)))


PUSHES = {
    "ingest": ("/ingest?name=ingest%7Benv%3Dprod%7D&format=pprof", PPROF, {}),
    "connect": ("/push.v1.PusherService/Push", series("connect", PPROF), {"Content_Type": "application/json"}),
    "raw": ("/profiles/writeraw", message("raw"), {"Content_Type": "application/proto"}),
    "raw-json": ("/profiles/writeraw", series("raw-json", PPROF, True), {"Content_Type": "application/json"}),
    "packed": (
        "/push.v1.PusherService/Push",
        gzip.compress(series("packed", PPROF)),
        {"Content_Type": "application/json", "Content_Encoding": "gzip"},
    ),
}


@pytest.mark.parametrize("service", PUSHES)
def test_push_costs_what_its_profile_costs_also_if_it_is_sent_twice(server: Served, service: str) -> None:
    path, body, headers = PUSHES[service]
    answers = [server.ask(path, body, **headers) for _ in range(2)]
    assert [each.status for each in answers] == [200, 200], answers[0].body
    server.until_indexed(1, service=service)
    (row,) = server.question("services", service=service).json()["services"]
    assert row["amount"] == golden().total


def test_otlp_has_a_window_for_each_process_and_the_whole_cost(server: Served) -> None:
    answer = server.ask("/v1development/profiles", OTLP, Content_Type="application/x-protobuf")
    assert (answer.status, answer.body) == (200, b"")
    processes = {thread.process for thread in golden().threads}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rows = [row for row in server.question("services").json()["services"] if "unknown_service" in row["service"]]
        if len(rows) == len(processes):
            break
        time.sleep(0.05)
    assert {row["service"] for row in rows} == {f"unknown_service:{name}" for name in processes}
    assert sum(row["amount"] for row in rows) == golden().total


def test_windows_of_one_push_are_told_apart_and_one_without_times_ends_now() -> None:
    twice = json.loads(series("twice", export("pprof", replace(PROFILE, start_ns=0))))["series"] * 2
    body = json.dumps({"series": twice}).encode()
    push = ForeignPush("/push.v1.PusherService/Push", {}, "application/json", "", body)
    (one, _), (other, _) = push.segments(NOW, 1 << 20)
    assert (one.end_ns, other.end_ns, one.service) == (NOW, NOW, "twice")
    assert one.path != other.path
    assert [name for name, _ in push.segments(NOW, 1 << 20)] == [one, other]


BAD = {
    "half a profile": ("/ingest?name=bad&format=pprof", PPROF[:99], {}, "breaks off"),
    "one bad of two": (
        "/push.v1.PusherService/Push",
        json.dumps(
            {"series": json.loads(series("bad", PPROF))["series"] + json.loads(series("bad", b"\x1f\x8bx"))["series"]}
        ).encode(),
        {"Content_Type": "application/json"},
        "gzip",
    ),
    "another format": ("/ingest?name=bad&format=jfr", PPROF, {}, "jfr"),
    "a bomb": (
        "/push.v1.PusherService/Push",
        gzip.compress(bytes(200 << 20), 1),
        {"Content_Encoding": "gzip"},
        "inflates to more than",
    ),
    "another encoding": ("/profiles/writeraw", b"x", {"Content_Encoding": "br"}, "only gzip"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_push_is_refused_with_its_reason_and_nothing_of_it_is_kept(
    server: Served, what: str, tmp_path: Path
) -> None:
    path, body, headers, said = BAD[what]
    answer = server.ask(path, body, **headers)
    assert (answer.status, answer.json()["reason"]) == (400, "bad_segment")
    assert said in answer.json()["error"]
    assert server.question("services", service="bad").json()["services"] == []
    assert b'refused_total{reason="bad_segment"}' in server.ask("/metrics").body
