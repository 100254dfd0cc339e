"""Parca: WriteRaw by HTTP with JSON, or by gRPC.

The message WriteRawRequest is that of parca-dev/parca, profilestore/v1alpha1/profilestore.proto.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import orjson

from pyprof.agent.push.http_client import Endpoint, HttpClient
from pyprof.agent.push.responses import NotSent
from pyprof.agent.push.segment_to_pprof import Part, SegmentProgress, check_empty, encode_labels, parts
from pyprof.agent.segment_names import SegmentName
from pyprof.exporters.protobuf import encode_data
from pyprof.model.labels import Labels

PATH = "/profiles/writeraw"
METHOD = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
_KIND = "application/json"


class ParcaSink:
    def __init__(self, write: Callable[[Part], None]) -> None:
        self._write = write
        self._progress = SegmentProgress()

    def send(self, name: SegmentName, data: bytes) -> None:
        self._progress.send(name, parts(data, name.service), lambda _name, _at, part: self._write(part))


def by_http(endpoint: Endpoint) -> Callable[[Part], None]:
    client = HttpClient(endpoint)

    def write(part: Part) -> None:
        labels = [{"name": name, "value": value} for name, value in part.labels]
        sample = {"rawProfile": base64.b64encode(part.pprof).decode()}
        request = {"series": [{"labels": {"labels": labels}, "samples": [sample]}], "normalized": False}
        answer = client.post(PATH, orjson.dumps(request), {"Content-Type": _KIND})
        if answer.kind != _KIND:
            raise NotSent("nonsense", f"the answer is {answer.kind}, not {_KIND}")

    return write


def by_grpc(call: Callable[[bytes], bytes]) -> Callable[[Part], None]:
    def write(part: Part) -> None:
        check_empty(call(write_raw_request(part.labels, part.pprof)))

    return write


def write_raw_request(labels: Labels, pprof: bytes) -> bytes:
    """Encode a WriteRawRequest for Parca. Addresses are those of the process, not normalized."""
    return encode_data(2, encode_data(1, encode_labels(labels)) + encode_data(2, encode_data(1, pprof)))
