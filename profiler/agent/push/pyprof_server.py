"""pyprof's own server: a segment is sent unchanged, under its name. The server answers 409 if it has it already."""

from __future__ import annotations

from pyprof.agent.push.http_client import Endpoint, HttpClient
from pyprof.agent.segment_names import SegmentName

PATH = "/api/v1/segments"
_THERE = 409


class ServerSink:
    def __init__(self, endpoint: Endpoint) -> None:
        self._client = HttpClient(endpoint)

    def send(self, name: SegmentName, data: bytes) -> None:
        """Send a segment to pyprof's own server. The folder's name has only characters that a path may contain; others
        are %XX already.
        """
        self._client.post(f"{PATH}/{name.path}", data, {"Content-Type": "application/octet-stream"}, (_THERE,))
