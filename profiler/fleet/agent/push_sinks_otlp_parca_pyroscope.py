"""Sinks that convert segments for receivers of other projects: OpenTelemetry, Parca and Pyroscope.

OpenTelemetry's profiles have the layout of proto 1.10, and go by HTTP or gRPC. The rules' service becomes service.name.

Parca takes WriteRaw by HTTP with JSON, or by gRPC. The message WriteRawRequest is that of parca-dev/parca,
profilestore/v1alpha1/profilestore.proto.

Pyroscope takes push.v1 with the Connect protocol, or /ingest if the server lacks it. A request has one profile, within
a server's default limits. Windows that are too old for the server are refused here. The message PushRequest is that of
grafana/pyroscope, api/push/v1/push.proto.
"""

from __future__ import annotations

import base64
import io
import time
import uuid
from collections.abc import Callable
from urllib.parse import urlencode

import orjson

from pyprof.errors import FormatError
from pyprof.exporters import otlp
from pyprof.exporters.base import ExportOptions
from pyprof.exporters.protobuf_encoding import encode_data
from pyprof.fleet.agent.push_segment_to_pprof import Part, SegmentProgress, check_empty, cut, encode_labels, parts, read
from pyprof.fleet.wire.push_client import Endpoint, HttpClient
from pyprof.fleet.wire.push_response_verdicts import NotSent, RefusedForGood
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers.protobuf import parse_fields, parse_numbers
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from pyprof.model.thread_identity import Labels

OTLP_PATH = "/v1development/profiles"
OTLP_METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
_OTLP_CONTENT_TYPE = "application/x-protobuf"


class OtlpSink:
    """A sink that sends segments as OpenTelemetry profiles. Its function `export` sends a request body and returns the
    body of the response.
    """

    def __init__(self, export: Callable[[bytes], bytes]) -> None:
        self._export = export
        self._progress = SegmentProgress()

    def send(self, name: SegmentName, data: bytes) -> None:
        self._progress.send(name, cut(read(data, name.service)), self._post)

    def _post(self, name: SegmentName, _: int, profile: Profile) -> None:
        service = ("service.name", name.service)
        threads = tuple(
            replace(each, labels=(*(label for label in each.labels if label[0] != "service"), service))
            for each in profile.threads
        )
        out = io.BytesIO()
        otlp.write(replace(profile, threads=threads), out, ExportOptions())
        check_exported(self._export(out.getvalue()))


def otlp_by_http(endpoint: Endpoint) -> Callable[[bytes], bytes]:
    client = HttpClient(endpoint)

    def export(body: bytes) -> bytes:
        answer = client.post(OTLP_PATH, body, {"Content-Type": _OTLP_CONTENT_TYPE})
        if answer.kind != _OTLP_CONTENT_TYPE:
            raise NotSent("nonsense", f"the answer is {answer.kind}, not {_OTLP_CONTENT_TYPE}")
        return answer.body

    return export


def check_exported(body: bytes) -> None:
    """Check the body of an ExportProfilesServiceResponse for rejected profiles.

    Raises:
        NotSent: The body is not a protobuf message.
        RefusedForGood: Profiles were rejected.
    """
    try:
        for key, value in parse_fields(body):
            if key == 1 and isinstance(value, bytes) and (rejected := parse_numbers(value).get(1, 0)):
                raise RefusedForGood("rejected", f"{rejected} profiles rejected")
    except FormatError:
        raise NotSent("nonsense", "the response is not a protobuf message") from None


PARCA_PATH = "/profiles/writeraw"
PARCA_METHOD = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
_PARCA_CONTENT_TYPE = "application/json"


class ParcaSink:
    def __init__(self, write: Callable[[Part], None]) -> None:
        self._write = write
        self._progress = SegmentProgress()

    def send(self, name: SegmentName, data: bytes) -> None:
        self._progress.send(name, parts(data, name.service), lambda _name, _at, part: self._write(part))


def parca_by_http(endpoint: Endpoint) -> Callable[[Part], None]:
    client = HttpClient(endpoint)

    def write(part: Part) -> None:
        labels = [{"name": name, "value": value} for name, value in part.labels]
        sample = {"rawProfile": base64.b64encode(part.pprof).decode()}
        request = {"series": [{"labels": {"labels": labels}, "samples": [sample]}], "normalized": False}
        answer = client.post(PARCA_PATH, orjson.dumps(request), {"Content-Type": _PARCA_CONTENT_TYPE})
        if answer.kind != _PARCA_CONTENT_TYPE:
            raise NotSent("nonsense", f"the answer is {answer.kind}, not {_PARCA_CONTENT_TYPE}")

    return write


def parca_by_grpc(call: Callable[[bytes], bytes]) -> Callable[[Part], None]:
    def write(part: Part) -> None:
        check_empty(call(write_raw_request(part.labels, part.pprof)))

    return write


def write_raw_request(labels: Labels, pprof: bytes) -> bytes:
    """Encode a WriteRawRequest for Parca. Addresses are those of the process, not normalized."""
    return encode_data(2, encode_data(1, encode_labels(labels)) + encode_data(2, encode_data(1, pprof)))


PUSH, INGEST = "/push.v1.PusherService/Push", "/ingest"
_BOUNDARY = "pyprof-part-of-a-request"


class PyroscopeSink:
    """A sink that sends segments to Pyroscope."""

    def __init__(
        self, endpoint: Endpoint, ingest: bool, max_age_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Create a sink that sends segments to Pyroscope.

        Args:
            ingest: Use the endpoint /ingest instead of push.v1.
            max_age_s: Maximum age of a window's end in seconds.
            clock: Function that returns the time since the epoch in seconds.
        """
        self._client = HttpClient(endpoint)
        self._post = self._ingest if ingest else self._push
        self._max_age_s, self._clock = max_age_s, clock
        self._progress = SegmentProgress()

    def send(self, name: SegmentName, data: bytes) -> None:
        age_s = self._clock() - name.end_ns / 1e9
        if age_s > self._max_age_s:
            raise RefusedForGood("too_old", f"{age_s:.0f} s old")
        self._progress.send(name, parts(data, name.service), self._post)

    def _push(self, name: SegmentName, at: int, part: Part) -> None:
        """Send a part of a segment to Pyroscope. The id of the profile depends only on segment and part, so that a part
        that is sent again has the same id.
        """
        body = push_request(part.labels, part.pprof, str(uuid.uuid5(uuid.UUID(name.key), str(at))))
        kind = "application/proto"
        answer = self._client.post(PUSH, body, {"Content-Type": kind, "Connect-Protocol-Version": "1"})
        if answer.kind != kind:
            raise NotSent("nonsense", f"the answer is {answer.kind or 'nothing'}, not {kind}")
        check_empty(answer.body)

    def _ingest(self, name: SegmentName, at: int, part: Part) -> None:
        known = dict(part.labels)
        labels = ",".join(
            f"{key}={_plain(value)}" for key, value in known.items() if key not in ("__name__", "service_name")
        )
        asked = urlencode(
            {
                "name": f"{_plain(known['service_name'])}{{{labels}}}",
                "from": part.start_ns // 1_000_000_000,
                "until": -(-part.end_ns // 1_000_000_000),
                "format": "pprof",
                "spyName": "pyprof",
            }
        )
        types = {
            each.type: {"units": each.unit, "aggregation": "sum", "sampled": True} for each in part.profile.value_types
        }
        body = _multipart({"profile": part.pprof, "sample_type_config": orjson.dumps(types)})
        self._client.post(f"{INGEST}?{asked}", body, {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"})


def _plain(text: str) -> str:
    """Replace characters that would end a value in a label list {key=value,...}."""
    return text.translate({ord(letter): "_" for letter in '{},="'})


def _multipart(files: dict[str, bytes]) -> bytes:
    """Encode files as a multipart form. No file has a line that begins with the boundary, because all are gzip data or
    JSON.
    """
    found = b""
    for name, data in files.items():
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'
        found += head.encode() + data + b"\r\n"
    return found + f"--{_BOUNDARY}--\r\n".encode()


def push_request(labels: Labels, pprof: bytes, id_: str) -> bytes:
    """Encode a PushRequest for Pyroscope. `id_` is a UUID."""
    return encode_data(1, encode_labels(labels) + encode_data(2, encode_data(1, pprof) + encode_data(2, id_.encode())))
