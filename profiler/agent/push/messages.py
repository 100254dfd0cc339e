"""Bodies of requests and responses as protocol buffers: PushRequest (grafana/pyroscope, api/push/v1/push.proto),
WriteRawRequest (parca-dev/parca, profilestore/v1alpha1/profilestore.proto), ExportProfilesServiceResponse
(opentelemetry-proto 1.10).
"""

from __future__ import annotations

from pyprof.agent.push.responses import NotSent, RefusedForGood
from pyprof.errors import FormatError
from pyprof.exporters.protobuf import encode_data
from pyprof.exporters.utf8 import encode_text
from pyprof.importers.protobuf import parse_fields, parse_numbers
from pyprof.model.labels import Labels


def _pairs(labels: Labels) -> bytes:
    return b"".join(
        encode_data(1, encode_data(1, encode_text(name)) + encode_data(2, encode_text(value))) for name, value in labels
    )


def push_request(labels: Labels, pprof: bytes, id_: str) -> bytes:
    """Encode a PushRequest for Pyroscope. `id_` is a UUID."""
    return encode_data(1, _pairs(labels) + encode_data(2, encode_data(1, pprof) + encode_data(2, id_.encode())))


def write_raw_request(labels: Labels, pprof: bytes) -> bytes:
    """Encode a WriteRawRequest for Parca. Addresses are those of the process, not normalized."""
    return encode_data(2, encode_data(1, _pairs(labels)) + encode_data(2, encode_data(1, pprof)))


def check_empty(body: bytes) -> None:
    """Check a receiver's response without known fields; raise NotSent if it is not a protobuf message."""
    try:
        parse_fields(body)
    except FormatError:
        raise NotSent("nonsense", "the answer is no message") from None


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
        raise NotSent("nonsense", "the answer is no message") from None
