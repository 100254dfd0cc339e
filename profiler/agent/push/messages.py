"""Bodies of requests and responses as protocol buffers: PushRequest (grafana/pyroscope, api/push/v1/push.proto),
WriteRawRequest (parca-dev/parca, profilestore/v1alpha1/profilestore.proto), ExportProfilesServiceResponse
(opentelemetry-proto 1.10).
"""

from __future__ import annotations

from pyprof.agent.push.responses import NotSent, RefusedForGood
from pyprof.errors import FormatError
from pyprof.exporters.protobuf import data
from pyprof.exporters.utf8 import encoded
from pyprof.importers.protobuf import fields, numbers
from pyprof.model.labels import Labels


def _pairs(labels: Labels) -> bytes:
    return b"".join(data(1, data(1, encoded(name)) + data(2, encoded(value))) for name, value in labels)


def push_request(labels: Labels, pprof: bytes, id_: str) -> bytes:
    """Encode a PushRequest; id_ is a UUID."""
    return data(1, _pairs(labels) + data(2, data(1, pprof) + data(2, id_.encode())))


def write_raw_request(labels: Labels, pprof: bytes) -> bytes:
    """Encode a WriteRawRequest. Addresses are those of the process, not normalized."""
    return data(2, data(1, _pairs(labels)) + data(2, data(1, pprof)))


def check_empty(body: bytes) -> None:
    """Check a response without known fields; raise NotSent if it is not a message."""
    try:
        fields(body)
    except FormatError:
        raise NotSent("nonsense", "the answer is no message") from None


def check_exported(body: bytes) -> None:
    """Check an ExportProfilesServiceResponse.

    Raises:
        NotSent: It is not a message.
        RefusedForGood: Profiles were rejected.
    """
    try:
        for key, value in fields(body):
            if key == 1 and isinstance(value, bytes) and (rejected := numbers(value).get(1, 0)):
                raise RefusedForGood("rejected", f"{rejected} profiles rejected")
    except FormatError:
        raise NotSent("nonsense", "the answer is no message") from None
