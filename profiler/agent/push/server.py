"""pyprof's own server: a segment as it is, under its name. What it has already it says with 409."""

from __future__ import annotations

from urllib.parse import quote

from pyprof.agent.push.http_client import Endpoint, HttpClient
from pyprof.agent.segments import SegmentName

PATH = "/api/v1/segments"
_THERE = 409


class ServerSink:
    def __init__(self, endpoint: Endpoint) -> None:
        self._client = HttpClient(endpoint)

    def send(self, name: SegmentName, data: bytes) -> None:
        """The folder has %XX of its own, which stay what they are."""
        path = "/".join([PATH, *(quote(part, safe="") for part in (name.day, name.folder, name.name))])
        self._client.post(path, data, {"Content-Type": "application/octet-stream"}, (_THERE,))
