"""Large bodies come slowly, all of them together, and of what nobody reads little is taken from a client.

The loop that answers everybody reads what comes as fast as it comes: who sends 16 MB again and again, or a gigabyte
that was refused long ago, has it for himself. So who asks for more of a large body waits, the kernel's buffers are
full then, and so the client waits, too. An answer that is given before the body has come is sent whole. Then what is
left is read if it is little, for most clients look for no answer before they have sent everything, and the connection
is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

SMALL = 1 << 20
"""Bytes of a body that come as fast as they can."""
RATE = 1 << 22
"""Bytes a second, of all others together."""
MOST_LEFT = 1 << 22
"""Bytes that are read when the answer is given."""
LEAVE_S = 5.0
"""That a client has then to read its answer."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Throttle:
    """Of all large bodies: who sends some has as much of RATE as each of the others. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: dict[bytes, float] = {}

    def wait_s(self, sender: bytes, size: int) -> float:
        """After so many bytes of one of his bodies."""
        now = self._clock()
        self._free_at = {each: at for each, at in self._free_at.items() if at > now}
        began = self._free_at.setdefault(sender, now)
        self._free_at[sender] = began + size * len(self._free_at) / RATE
        return self._free_at[sender] - now


class PacedBodies:
    """An ASGI application around another. Who has the same token is one sender."""

    def __init__(self, app: App, throttle: Throttle | None = None) -> None:
        self._app, self._throttle = app, throttle or Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (stated := stated_size(scope)) > SMALL:
            sender = dict(scope["headers"]).get(b"authorization", b"")
            request = _LargeRequest(stated, sender, receive, send, self._throttle)
            receive, send = request.receive, request.send
        await self._app(scope, receive, send)


def stated_size(scope: Scope) -> float:
    """Bytes of the body that is to come, as its head says; infinite where it does not."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return float("inf")
    return float(int(headers.get(b"content-length", b"0")))  # httptools takes nothing else


class _LargeRequest:
    """stated: bytes. Its receive() and send() stand before those of the server."""

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
        """What is left is read where it is little; otherwise the client finds out that nobody reads."""
        self._sender, most = b"", self._came + MOST_LEFT  # one who is refused may have said any token
        while not self._whole and self._came < most and (self._stated <= most or self._stated == float("inf")):
            await self.receive()
        if not self._whole:
            await asyncio.sleep(LEAVE_S)
