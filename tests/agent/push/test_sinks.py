"""Tests of the requests that each kind of sink sends, parsed with the receivers' own message definitions."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections import Counter
from concurrent import futures
from email.parser import BytesParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from pyprof.fleet.agent import push_segment_to_pprof, push_sink_types, push_sinks_otlp_parca_pyroscope
from pyprof.fleet.agent.push_sink_types import BucketSink, PushTarget, ServerSink
from pyprof.fleet.agent.push_sinks_otlp_parca_pyroscope import PyroscopeSink
from pyprof.fleet.wire.push_client import Credentials, Endpoint, GrpcCall
from pyprof.fleet.wire.push_response_verdicts import NotSent, RefusedForGood, judge_http
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers import pprof
from pyprof.model.profile import Profile
from tests.agent.push.contracts import decoded
from tests.agent.push.receivers import Said, labelled, proto, receiver, segment
from tests.support import missing

WINDOW_S = 10**9


def totals(profile: Profile) -> list[int]:
    found: list[int] = profile.values.sum(axis=0).tolist()
    return found


def stacks(profile: Profile) -> Counter[tuple[str, ...]]:
    """Return the primary value of each stack, keyed by frame titles from leaf to root."""
    found: Counter[tuple[str, ...]] = Counter()
    for _, node, values in profile.totals():
        names = []
        while node > 0:
            names.append(profile.frames[profile.frame[node]].title)
            node = profile.parent[node]
        found[tuple(names)] += int(values[-1])
    return found


def pyroscope(endpoint: Endpoint, ingest: bool = False, now_s: float = WINDOW_S + 60) -> PyroscopeSink:
    return PyroscopeSink(endpoint, ingest, 3600.0, lambda: now_s)


def test_pyroscope_series_has_labels_of_the_rule_only() -> None:
    name, data = segment(service="web/1")
    with receiver(lambda _: proto()) as server:
        pyroscope(server.endpoint()).send(name, data)
    (asked,) = server.asked
    assert asked.path == "/push.v1.PusherService/Push"
    assert (asked.headers["Content-Type"], asked.headers["Connect-Protocol-Version"]) == ("application/proto", "1")
    (sent,) = decoded("push.v1.PushRequest", asked.body).series
    assert {each.name: each.value for each in sent.labels} == {
        "__name__": "process_cpu",
        "service_name": "web/1",
        "env": "test",
    }
    (sample,) = sent.samples
    assert len(sample.ID) == 36
    whole, read = pprof.read_pprof(data, "x"), pprof.read_pprof(sample.raw_profile, "x")
    assert stacks(read) == stacks(whole)
    assert totals(read) == totals(whole)
    assert totals(whole)[0] > 0
    assert {thread.pid for thread in read.threads} == {0}
    assert b"worker" not in gzip.decompress(sample.raw_profile), "threads' names are no labels"


def test_parts_of_a_large_segment_sum_up_and_each_is_within_the_limits() -> None:
    profile = labelled()
    whole = pprof.read_pprof(segment(profile)[1], "x")
    size = push_segment_to_pprof.inflated_size(push_segment_to_pprof.packed(whole))
    cut = list(push_segment_to_pprof.cut(whole, size // 2))
    assert len(cut) > 1
    assert all(push_segment_to_pprof.inflated_size(push_segment_to_pprof.packed(part)) <= size // 2 for part in cut)
    assert np.sum([totals(part) for part in cut], axis=0).tolist() == totals(whole)
    with pytest.raises(RefusedForGood) as caught:
        list(push_segment_to_pprof.cut(whole, 100))
    assert caught.value.word == "too_large"


def test_segment_in_parts_goes_on_where_the_receiver_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = segment()
    monkeypatch.setattr(push_segment_to_pprof, "MAX_SAMPLES", 2)
    count = len(list(push_segment_to_pprof.parts(data, "web")))
    assert count > 2
    answers = iter([200, 503, *[200] * count])
    with receiver(lambda _: proto(next(answers))) as server:
        sink = pyroscope(server.endpoint())
        with pytest.raises(NotSent):
            sink.send(name, data)
        sink.send(name, data)
    ids = [decoded("push.v1.PushRequest", asked.body).series[0].samples[0].ID for asked in server.asked]
    assert len(ids) == count + 1
    assert len(set(ids)) == count
    assert ids[1] == ids[2], "the one that failed comes again as the same"


def test_window_that_is_too_old_for_pyroscope_is_refused_without_asking() -> None:
    name, data = segment()
    with receiver(lambda _: proto()) as server:
        with pytest.raises(RefusedForGood) as caught:
            pyroscope(server.endpoint(), now_s=WINDOW_S + 3601).send(name, data)
        pyroscope(server.endpoint(), now_s=WINDOW_S + 3599).send(name, data)
    assert caught.value.word == "too_old"
    assert len(server.asked) == 1


def test_ingest_names_series_times_and_types_and_a_service_cannot_add_labels() -> None:
    name, data = segment(service="a{b=c}&format=jfr")
    with receiver(lambda _: Said()) as server:
        pyroscope(server.endpoint(), ingest=True).send(name, data)
    (asked,) = server.asked
    query = parse_qs(urlsplit(asked.path).query, strict_parsing=True)
    assert query["name"] == ["a_b_c_&format_jfr{env=test}"]
    assert query["format"] == ["pprof"]
    whole = pprof.read_pprof(data, "x")
    assert int(query["until"][0]) * 10**9 >= whole.start_ns + whole.duration_ns
    head = f"Content-Type: {asked.headers['Content-Type']}\r\n\r\n".encode()
    message: Any = BytesParser().parsebytes(head + asked.body)
    found = {part.get_filename(): part.get_payload(decode=True) for part in message.get_payload()}
    assert totals(pprof.read_pprof(found["profile"], "x")) == totals(whole)
    types = json.loads(found["sample_type_config"])
    assert types.keys() == {each.type for each in whole.value_types}


def test_our_server_gets_the_segment_as_it_is_and_what_it_has_counts_as_sent() -> None:
    name, data = segment(service="../../etc/passwd")
    with receiver(lambda _: Said(409)) as server:
        ServerSink(server.endpoint()).send(name, data)
    (asked,) = server.asked
    assert asked.body == data
    prefix, day, folder, file = asked.path.rsplit("/", 3)
    assert (prefix, day, file) == ("/api/v1/segments", name.day, name.name)
    assert ".." not in asked.path.split("/")
    assert folder == name.folder == "%2E.%2F..%2Fetc%2Fpasswd"


def otlp_totals(body: bytes) -> tuple[str, dict[str, int]]:
    try:
        from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as messages
    except ImportError:
        missing("needs opentelemetry-proto: pip install -e .[dev]")
    request = messages.ExportProfilesServiceRequest.FromString(body)
    text = request.dictionary.string_table
    sums: Counter[str] = Counter()
    services = set()
    for resource in request.resource_profiles:
        services |= {each.value.string_value for each in resource.resource.attributes if each.key == "service.name"}
        for profile in resource.scope_profiles[0].profiles:
            sums[text[profile.sample_type.type_strindex]] += sum(sum(each.values) for each in profile.samples)
    (service,) = services
    return service, dict(sums)


def expected(data: bytes) -> dict[str, int]:
    whole = pprof.read_pprof(data, "x")
    return dict(zip([each.type for each in whole.value_types], totals(whole), strict=True))


def test_otlp_by_http_has_the_service_and_sums_in_the_published_messages() -> None:
    name, data = segment()
    with receiver(lambda _: proto(kind="application/x-protobuf", body=b"\x0a\x00")) as server:
        push_sinks_otlp_parca_pyroscope.OtlpSink(push_sinks_otlp_parca_pyroscope.otlp_by_http(server.endpoint())).send(
            name, data
        )
    (asked,) = server.asked
    assert asked.path == "/v1development/profiles"
    assert otlp_totals(asked.body) == ("web", expected(data))


def test_profiles_that_a_collector_rejects_are_refused_for_good() -> None:
    name, data = segment()
    with (
        receiver(lambda _: proto(kind="application/x-protobuf", body=b"\x0a\x02\x08\x03")) as server,
        pytest.raises(RefusedForGood, match="3 profiles") as caught,
    ):
        push_sinks_otlp_parca_pyroscope.OtlpSink(push_sinks_otlp_parca_pyroscope.otlp_by_http(server.endpoint())).send(
            name, data
        )
    assert caught.value.word == "rejected"


def test_parca_by_http_has_the_fields_of_its_message_as_json() -> None:
    name, data = segment()
    with receiver(lambda _: proto(kind="application/json", body=b"{}")) as server:
        push_sinks_otlp_parca_pyroscope.ParcaSink(
            push_sinks_otlp_parca_pyroscope.parca_by_http(server.endpoint())
        ).send(name, data)
    (asked,) = server.asked
    sent = json.loads(asked.body)
    (one,) = sent["series"]
    assert {each["name"]: each["value"] for each in one["labels"]["labels"]}["__name__"] == "process_cpu"
    raw = base64.b64decode(one["samples"][0]["rawProfile"])
    assert totals(pprof.read_pprof(raw, "x")) == totals(pprof.read_pprof(data, "x"))
    assert (asked.path, sent["normalized"]) == ("/profiles/writeraw", False)


def grpc_server(answers: dict[str, Any]) -> tuple[Any, str, list[tuple[bytes, dict[str, str]]]]:
    """Start a gRPC server with scripted responses.

    Args:
        answers: For each method, a function that takes the context and returns the response body.
    """
    try:
        import grpc
    except ImportError:
        missing("needs grpcio: pip install -e .[dev]")
    asked: list[tuple[bytes, dict[str, str]]] = []

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            answer = answers.get(details.method)
            if answer is None:
                return None

            def called(body: bytes, context: Any) -> Any:
                asked.append((body, dict(context.invocation_metadata())))
                return answer(context)

            return grpc.unary_unary_rpc_method_handler(called)

    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"http://127.0.0.1:{port}", asked


def test_otlp_and_parca_by_grpc_get_the_same_values_and_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("s3cret\n")
    server, url, asked = grpc_server(
        {
            push_sinks_otlp_parca_pyroscope.OTLP_METHOD: lambda _: b"\x0a\x00",
            push_sinks_otlp_parca_pyroscope.PARCA_METHOD: lambda _: b"",
        }
    )
    try:
        name, data = segment()
        endpoint = Endpoint(url, Credentials(str(token)))
        push_sinks_otlp_parca_pyroscope.OtlpSink(GrpcCall(endpoint, push_sinks_otlp_parca_pyroscope.OTLP_METHOD)).send(
            name, data
        )
        push_sinks_otlp_parca_pyroscope.ParcaSink(
            push_sinks_otlp_parca_pyroscope.parca_by_grpc(
                GrpcCall(endpoint, push_sinks_otlp_parca_pyroscope.PARCA_METHOD)
            )
        ).send(name, data)
    finally:
        server.stop(None).wait()
    (exported, metadata), (written, _) = asked
    assert metadata["authorization"] == "Bearer s3cret"
    assert otlp_totals(exported) == ("web", expected(data))
    (one,) = decoded("parca.profilestore.v1alpha1.WriteRawRequest", written).series
    assert {each.name: each.value for each in one.labels.labels}["service_name"] == "web"
    assert totals(pprof.read_pprof(one.samples[0].raw_profile, "x")) == totals(pprof.read_pprof(data, "x"))


def test_statuses_of_grpc_are_later_or_for_good() -> None:
    import grpc

    codes = iter(["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNAUTHENTICATED"])

    def refuse(context: Any) -> bytes:
        context.abort(getattr(grpc.StatusCode, next(codes)), "no")
        return b""

    server, url, _ = grpc_server({push_sinks_otlp_parca_pyroscope.OTLP_METHOD: refuse})
    name, data = segment()
    sink = push_sinks_otlp_parca_pyroscope.OtlpSink(
        GrpcCall(Endpoint(url), push_sinks_otlp_parca_pyroscope.OTLP_METHOD)
    )
    words = []
    try:
        for _ in range(3):
            try:
                sink.send(name, data)
            except (NotSent, RefusedForGood) as error:
                words.append((type(error), error.word))
    finally:
        server.stop(None).wait()
    assert words == [(NotSent, "limited"), (RefusedForGood, "bad_request"), (NotSent, "unauthorized")]


def test_bucket_has_an_object_for_each_segment(tmp_path: Path) -> None:
    name, data = segment()
    BucketSink(f"file://{tmp_path}/bucket", {}).send(name, data)
    assert (tmp_path / "bucket" / name.path).read_bytes() == data
    with pytest.raises(NotSent):
        BucketSink("nothing-knows-this://x", {}).send(name, data)


def test_broken_segment_is_refused_without_a_request() -> None:
    name = SegmentName.new("web", 10**18)
    with receiver(lambda _: proto()) as server:
        for sink in (
            pyroscope(server.endpoint()),
            push_sinks_otlp_parca_pyroscope.OtlpSink(push_sinks_otlp_parca_pyroscope.otlp_by_http(server.endpoint())),
        ):
            with pytest.raises(RefusedForGood) as caught:
                sink.send(name, b"\x1f\x8bnothing")
            assert caught.value.word == "unreadable"
    assert not server.asked


def test_bucket_whose_package_is_missing_is_told_by_the_check_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    target = PushTarget("b", "bucket", {"url": "s3://bucket/x"})
    assert "s3fs" in push_sink_types.missing(target)
    with pytest.raises(NotSent) as caught:
        BucketSink("s3://bucket/x", {}).send(SegmentName.new("a", 10**18), b"")
    assert caught.value.word == "no_package"
    assert "s3fs" in str(caught.value)


def test_receiver_that_knows_no_such_request_is_not_the_one_that_is_meant() -> None:
    with pytest.raises(NotSent) as caught:
        judge_http(501)
    assert caught.value.word == "not_there"
