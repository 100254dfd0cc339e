"""Limits for the time and size of a request's header, which uvicorn does not set for httptools."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 1 << 16
PATIENCE_S = 10.0


class BoundedProtocol(HttpToolsProtocol):
    """An HTTP protocol that closes the connection if a header is too long or does not arrive in time."""

    _patience: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._patience is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._patience is not None and self._head_bytes > MAX_HEAD:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._forget_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self.transport.close)

    def _forget_head(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
