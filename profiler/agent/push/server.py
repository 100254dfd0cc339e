"""pyprof's own server: a segment as it is, under its name. What it has already it says with 409."""

from __future__ import annotations

from pyprof.agent.push.http_client import Endpoint, HttpClient
from pyprof.agent.segments import SegmentName

PATH = "/api/v1/segments"
_THERE = 409


class ServerSink:
    def __init__(self, endpoint: Endpoint) -> None:
        self._client = HttpClient(endpoint)

    def send(self, name: SegmentName, data: bytes) -> None:
        """A folder's name has only letters that a path may have: others are %XX already."""
        self._client.post(f"{PATH}/{name.path}", data, {"Content-Type": "application/octet-stream"}, (_THERE,))
