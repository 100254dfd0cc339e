"""Pyroscope: push.v1 with the Connect protocol, or /ingest for servers that lack it.

A request has one profile, within a server's default limits. Windows that are too old for the server are refused here.
The message PushRequest is that of grafana/pyroscope, api/push/v1/push.proto.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from urllib.parse import urlencode

import orjson

from pyprof.agent.push.http_client import Endpoint, HttpClient
from pyprof.agent.push.responses import NotSent, RefusedForGood
from pyprof.agent.push.segment_to_pprof import Part, SegmentProgress, check_empty, encode_labels, parts
from pyprof.agent.segment_names import SegmentName
from pyprof.exporters.protobuf import encode_data
from pyprof.model.labels import Labels

PUSH, INGEST = "/push.v1.PusherService/Push", "/ingest"
_BOUNDARY = "pyprof-part-of-a-request"


class PyroscopeSink:
    """A sink that sends segments to Pyroscope."""

    def __init__(
        self, endpoint: Endpoint, ingest: bool, max_age_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Create a sink that sends segments to Pyroscope.

        Args:
            ingest: Use /ingest.
            max_age_s: Maximum age of a window's end in seconds.
            clock: Returns the time since the epoch.
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
        """Send a part of a segment to Pyroscope. Its id depends only on the segment and the part, so that a repeated
        part has the same id.
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
    """Encode a multipart form with files. Gzip data and JSON have no line that begins with the boundary."""
    found = b""
    for name, data in files.items():
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'
        found += head.encode() + data + b"\r\n"
    return found + f"--{_BOUNDARY}--\r\n".encode()


def push_request(labels: Labels, pprof: bytes, id_: str) -> bytes:
    """Encode a PushRequest for Pyroscope. `id_` is a UUID."""
    return encode_data(1, encode_labels(labels) + encode_data(2, encode_data(1, pprof) + encode_data(2, id_.encode())))
