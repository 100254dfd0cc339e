"""Limits for requests: time and size of headers, the rate of large bodies, and the number of sets of labels.

The event loop reads bodies as fast as they arrive. A client that sends 16 MB again and again, or a gigabyte that was
refused long ago, would occupy the loop alone. So the server delays the reading of a large body. The kernel's buffers
fill up, and the client has to wait. A response that is ready before the end of the body is sent completely. The rest of
the body is then read if it is small, because most clients read no response before they have sent everything. Then the
connection is closed.

A tenant may send a limited number of label sets in a day: each is a separate line on the page.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.store.clickhouse_engine import StoreError
from pyprof.fleet.server.store.database import Store

MAX_OF_SEGMENT = 1000
_MAX_DAYS = 64
"""Maximum number of pairs (tenant, day) whose label sets are cached. Those of the oldest pair are dropped and would be
read from the database again.
"""


class SeriesLimit:
    """A limit for the number of different label sets (series) that a tenant may send in a day. Thread-safe.

    A segment with too many new label sets is refused. The label sets that a tenant has already sent are read from the
    database once, and then cached.

    Args:
        most: Maximum number of label sets of a tenant in a day.
        store: The database.
    """

    def __init__(self, most: int, store: Store) -> None:
        self._most, self._store = most, store
        self._known: dict[tuple[str, str], set[int]] = {}
        self._lock = threading.Lock()

    def count_series(self, tenant: str, day: str, series: Iterable[int]) -> None:
        """Count the label sets of a segment against the tenant's daily limit. A label set that the tenant sends several
        times on a day counts once.

        Args:
            tenant: Name of the tenant.
            day: The day of the segment.
            series: A number that identifies each label set.

        Raises:
            Refused: There are too many. None of the segment's label sets is then counted.
        """
        wanted = set(series)
        if len(wanted) > MAX_OF_SEGMENT:
            text = f"the segment has {len(wanted):,} sets of labels, {MAX_OF_SEGMENT:,} at most may be taken"
            raise Refused("too_many_series", text)
        with self._lock:
            known = self._of(tenant, day)
            if wanted <= known:
                return
            whole = len(known) + len(wanted - known)
            if whole > self._most:
                text = f"it would be {whole:,} sets of labels on {day}, {self._most:,} at most may be taken"
                raise Refused("too_many_series", text)
            known |= wanted

    def _of(self, tenant: str, day: str) -> set[int]:
        """Return the known label sets (series) of a tenant on a day. They are read from the database on the first
        access.
        """
        found = self._known.get((tenant, day))
        if found is None:
            if len(self._known) >= _MAX_DAYS:
                self._known.pop(next(iter(self._known)))
            try:
                found = self._store.series(tenant, day, self._most)
            except StoreError:
                found = set()  # windows are accepted even if the database is away
            self._known[tenant, day] = found
        return found


SMALL = 1 << 20
"""Number of bytes of each request body that are read without a limit of the rate."""
RATE = 1 << 22
"""Maximum rate in bytes per second, for all large request bodies together."""
MAX_LEFT = 1 << 22
"""Maximum number of remaining bytes of a request body that the server still reads after it has sent its response."""
LEAVE_S = 5.0
"""Time in seconds that a client has to read an early response before the server closes the connection."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Throttle:
    """A rate limit that divides RATE equally among the senders of large bodies. Its function `clock` returns
    seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: dict[bytes, float] = {}

    def wait_s(self, sender: bytes, size: int) -> float:
        """Return how many seconds the server must wait after it has received this number of bytes from a sender."""
        now = self._clock()
        self._free_at = {each: at for each, at in self._free_at.items() if at > now}
        began = self._free_at.setdefault(sender, now)
        self._free_at[sender] = began + size * len(self._free_at) / RATE
        return self._free_at[sender] - now


class BodyRateLimit:
    """An ASGI application that wraps another one and limits the rate of large request bodies. Requests with the same
    token count as one sender.
    """

    def __init__(self, app: App, throttle: Throttle | None = None) -> None:
        self._app, self._throttle = app, throttle or Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (stated := stated_size(scope)) > SMALL:
            sender = dict(scope["headers"]).get(b"authorization", b"")
            request = _LargeRequest(stated, sender, receive, send, self._throttle)
            receive, send = request.receive, request.send
        await self._app(scope, receive, send)


def stated_size(scope: Scope) -> float:
    """Return the size of a request body in bytes that its Content-Length header states, infinite if there is none."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return float("inf")
    return float(int(headers.get(b"content-length", b"0")))  # httptools accepts nothing else


class _LargeRequest:
    """A wrapper of the HTTP server's receive() and send() functions for one request with a large body. It limits the
    rate of the body. `stated` is the size of the body in bytes.
    """

    def __init__(self, stated: float, sender: bytes, receive: Receive, send: Send, throttle: Throttle) -> None:
        self._stated, self._sender, self._receive, self._send, self._throttle = stated, sender, receive, send, throttle
        self._came, self._whole, self._early = 0, False, False

    async def receive(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._came += size
        self._whole = not message.get("more_body", False)
        if self._came > SMALL:
            await asyncio.sleep(self._throttle.wait_s(self._sender, size))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._early = not self._whole
            if self._early:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not self._early or not last:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._leave()
        await self._send({"type": "http.response.body"})

    async def _leave(self) -> None:
        """Read the rest of the request body if it is small. Otherwise give the client time to notice the response."""
        self._sender, most = b"", self._came + MAX_LEFT  # a refused client may have sent any token
        while not self._whole and self._came < most and (self._stated <= most or self._stated == float("inf")):
            await self.receive()
        if not self._whole:
            await asyncio.sleep(LEAVE_S)


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
        # uvicorn's date is that of its last tick, up to half a minute ago on a busy host; agents compare clocks by it
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
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
