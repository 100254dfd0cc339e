"""An answer of HTTP that is bounded as it comes: with its headers, what stands between the pieces of its body, and
answers before it (1xx). http.client reads all of these for as long as they come.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from pyprof.agent.push.outcomes import NotSent

MOST_READ = 1 << 20
"""Bytes of an answer, all of it."""


class BoundedAnswer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **words: Any) -> None:
        super().__init__(sock, *args, **words)
        self._came = _Came(self.fp.detach())
        self.fp = io.BufferedReader(self._came)

    def begin(self) -> None:
        """Raises HTTPException where it breaks off before its body: http.client takes that for the end of headers."""
        super().begin()
        if self._came.ended:
            raise http.client.IncompleteRead(b"")


class _Came(io.RawIOBase):
    """Bytes of a connection. Raises NotSent where they are too many. ended: there are no more."""

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
