"""An HTTP response with a size limit for everything: headers, chunk framing, and responses before it (1xx).

http.client reads all of these without a limit.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from pyprof.agent.push.responses import NotSent

MOST_READ = 1 << 20
"""Maximum size in bytes of a receiver's HTTP response, including all framing."""


class BoundedAnswer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **words: Any) -> None:
        super().__init__(sock, *args, **words)
        self._came = _Came(self.fp.detach())
        self.fp = io.BufferedReader(self._came)

    def begin(self) -> None:
        """Read the head of an HTTP response; raise HTTPException if the connection ends within it, which http.client
        takes for the end of headers.
        """
        super().begin()
        if self._came.ended:
            raise http.client.IncompleteRead(b"")


class _Came(io.RawIOBase):
    """The bytes that a connection has received. Too many raise NotSent; ended is True at the end of the stream."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self.ended = False
        self._raw, self._left = raw, MOST_READ

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        size = self._raw.readinto(buffer)
        self.ended = size == 0
        self._left -= size or 0
        if self._left < 0:
            raise NotSent("nonsense", f"an answer of more than {MOST_READ} bytes")
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()
