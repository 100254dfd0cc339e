"""OpenTelemetry's profiles in the layout of proto 1.10, by HTTP and gRPC. The rules' service becomes service.name."""

from __future__ import annotations

import io
from collections.abc import Callable

from pyprof.agent.push.http_client import Endpoint, HttpClient
from pyprof.agent.push.responses import NotSent, RefusedForGood
from pyprof.agent.push.segment_to_pprof import SegmentProgress, cut, read
from pyprof.agent.segment_names import SegmentName
from pyprof.errors import FormatError
from pyprof.exporters import otlp
from pyprof.exporters.base import ExportOptions
from pyprof.importers.protobuf import parse_fields, parse_numbers
from pyprof.model.profile import Profile
from pyprof.records import replace

PATH = "/v1development/profiles"
METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
_KIND = "application/x-protobuf"


class OtlpSink:
    """A sink that sends segments as OpenTelemetry profiles; export sends a body and returns the response's body."""

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


def by_http(endpoint: Endpoint) -> Callable[[bytes], bytes]:
    client = HttpClient(endpoint)

    def export(body: bytes) -> bytes:
        answer = client.post(PATH, body, {"Content-Type": _KIND})
        if answer.kind != _KIND:
            raise NotSent("nonsense", f"the answer is {answer.kind}, not {_KIND}")
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
