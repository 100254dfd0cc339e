"""Ingest of segments: each is stored durably, or refused with a reason. These requests are so frequent that they bypass
Starlette.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

from pyprof.errors import FormatError
from pyprof.fleet.server.authorization import WRITE, Access, Refused
from pyprof.fleet.server.config import ServerConfig
from pyprof.fleet.server.health_and_metrics import DISK_FULL
from pyprof.fleet.server.ingest import large_body_process
from pyprof.fleet.server.ingest.foreign_pushes import ForeignPush
from pyprof.fleet.server.ingest.large_body_process import LargeBodies
from pyprof.fleet.server.ingest.segment_files import DiskFull
from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, rows_of
from pyprof.fleet.server.request_limits import Receive, Scope, Send, SeriesLimit
from pyprof.fleet.server.start_and_shutdown import ServerParts
from pyprof.fleet.wire.segment_names import OTHER, SegmentName, day_of, folder_of
from pyprof.importers import pprof
from pyprof.importers.profile_builder import WorkLimit, WorkLimitExceeded
from pyprof.lazy_dataclasses import replace
from pyprof.model.untrusted_text import dump_json

SMALL = WorkLimit(samples=4_000, threads=1_000, unknown=100, calls=10_000, frames=100)
MIDDLE = WorkLimit(samples=30_000, threads=2_000, unknown=100, calls=10_000, frames=100)
"""Limits for the work on a request body in the server's own process: SMALL allows about 10 ms of work, MIDDLE 100
ms.
"""
_TOGETHER = 8
"""Number of threads that store received segments, so that one segment can be written while another waits for the
disk.
"""
_SMALL_BYTES = 1 << 18
"""Maximum inflated size in bytes of a request body that the single thread for small bodies reads. With more threads
that need the GIL, each of their system calls takes longer. Windows of 400 stacks are half as large.
"""
LARGE = 1 << 23
"""Inflated size in bytes above which a request body is read in another process, one such body at a time."""
ELSEWHERE = min(os.cpu_count() or 1, 4)
"""Maximum number of expensive request bodies that are read at the same time, each in a separate process."""
_MAX_LARGE, _MAX_WAITING = 4, 64
"""Maximum numbers of large request bodies and of other expensive request bodies of one tenant that wait for a
process.
"""
MAX_HELD = 1 << 29
"""Maximum total size in bytes of all request bodies that are arriving or waiting."""
_RETRY_S = 30
_Read = TypeVar("_Read")
_Kept = TypeVar("_Kept")


def size_of(body: bytes) -> int:
    """Return the inflated size of a request body in bytes."""
    return max(pprof.read_stated_size(body), len(body))


class IngestThreads:
    """The threads that read and store received segments. Expensive bodies never delay others."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "pyprof read")
        self._middle = ThreadPoolExecutor(1, "pyprof middle")
        self._large = ThreadPoolExecutor(1, "pyprof large")
        self._much = ThreadPoolExecutor(ELSEWHERE, "pyprof much")
        self._keepers = ThreadPoolExecutor(_TOGETHER, "pyprof keep")
        self._waiting: Counter[str] = Counter()
        self._bytes = 0

    async def run(
        self,
        tenant: str,
        body: bytes,
        here: Callable[[WorkLimit], _Read] | None,
        elsewhere: Callable[[], _Read],
        keep: Callable[[_Read], _Kept],
    ) -> _Kept:
        """Read a request body and store the result. Large and expensive bodies are read in another process.

        Args:
            here: Function that reads the body in this process, and raises WorkLimitExceeded if that is too expensive.
                None to always use another process.
            elsewhere: Function that reads the body in another process.
            keep: Function that stores what was read.

        Returns:
            The result of keep.

        Raises:
            Refused: Too many bodies wait. The functions may raise other exceptions.
        """
        loop, size = asyncio.get_running_loop(), size_of(body)
        if here is not None and size <= LARGE:
            reader, little = (self._reader, SMALL) if size <= _SMALL_BYTES else (self._middle, MIDDLE)
            with suppress(WorkLimitExceeded):
                found = await loop.run_in_executor(reader, here, little)
                return await loop.run_in_executor(self._keepers, keep, found)
        threads, most = (self._large, _MAX_LARGE) if size > LARGE else (self._much, _MAX_WAITING)
        with self._wait(tenant, body, most):
            return await loop.run_in_executor(threads, lambda: keep(elsewhere()))

    @contextmanager
    def _wait(self, tenant: str, body: bytes, most: int) -> Iterator[None]:
        """Count a request body as waiting until the context is left; raise Refused if too many wait."""
        if self._waiting[tenant] >= most or self._bytes + len(body) > MAX_HELD:
            text = (
                f"{self._waiting[tenant]} bodies that are much work wait of the tenant, {most} at most, or others' do"
            )
            raise Refused("too_many_requests", text, _RETRY_S)
        self._waiting[tenant] += 1
        self._bytes += len(body)
        try:
            yield
        finally:
            self._waiting[tenant] -= 1
            self._bytes -= len(body)

    def close(self) -> None:
        """Cancel the reading of bodies that has not begun, without waiting, because no client waits for its response
        any more.
        """
        for threads in (self._reader, self._middle, self._large, self._much, self._keepers):
            threads.shutdown(wait=False, cancel_futures=True)


MAX_INFLATED = 1 << 27
"""Maximum inflated size in bytes of a request that sends a segment."""
SEGMENTS = "/api/v1/segments/"
SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
JSON = "application/json"
_FUTURE_S = 86_400
_MAX_END_DIFFERENCE_NS = 86_400_000_000_000
"""Maximum difference in nanoseconds between the end of a window in the segment's contents and in its name."""
_BODY_S = 60
"""Maximum time in seconds for a request body to arrive."""
_Found = TypeVar("_Found")
ReadSegment = tuple[SegmentRows, bytes]
"""Type of a decoded segment: its rows for the database, and the bytes of the file that is stored."""
_HERE = ("localhost", "127.0.0.1", "[::1]")


class ClientGone(Exception):
    """The client has disconnected, so that no response is needed."""


class IngestApp:
    """The ASGI application that receives segments. Some of its methods also serve pushes of other projects' agents."""

    def __init__(self, config: ServerConfig, parts: ServerParts, access: Access) -> None:
        self._config, self._access = config, access
        self._files, self._indexer, self._books, self._numbers = parts.files, parts.indexer, parts.books, parts.numbers
        self._health, self._refusals = parts.health, parts.refusals
        self._rates: dict[str, tuple[int, int]] = {}
        self._held = 0
        self._series = SeriesLimit(config.series, parts.store)
        self._threads = IngestThreads()
        self._large = LargeBodies()
        self._readers = [LargeBodies() for _ in range(ELSEWHERE)]
        self._idle = list(self._readers)

    def close(self) -> None:
        self._threads.close()
        for each in (self._large, *self._readers):
            each.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            self.check_host(headers.get(b"host", b"").decode("latin-1"))
            tenant = self.writer(headers.get(b"authorization", b"").decode("latin-1"))
            if scope["method"] != "POST":
                raise Refused("no_such_page")
            name = self._named(scope["raw_path"])
            data = await self.body(headers.get(b"content-length", b"").decode("latin-1"), receive)
            if not await self._take(tenant, data, *self._readings(tenant, name, data)):
                raise Refused("segment_known")
        except ClientGone:
            return
        except Refused as refused:
            client = scope.get("client")
            await answer(send, *self.refusal(refused, str(client[0]) if client else ""))
            return
        await answer(send, 200, b"{}", SAFE)

    def refusal(self, refused: Refused, client: str) -> tuple[int, bytes, dict[str, str]]:
        """Count and log the refusal of a segment, and return the response.

        Args:
            refused: The exception that says why the request is refused.
            client: The address of the client, without its port.

        Returns:
            The status, body and headers of the response.
        """
        self._numbers.count("refused", refused.reason)
        self._refusals.note_refusal(refused.reason, str(refused), client)
        headers = {**SAFE, **({"Retry-After": str(refused.retry_s)} if refused.retry_s else {})}
        found = {"reason": refused.reason, "error": str(refused), **({"hint": refused.hint} if refused.hint else {})}
        return refused.status, dump_json(found), headers

    def check_host(self, host: str) -> None:
        """Refuse a request for an unknown host name, if the server has no tokens. Otherwise a malicious web page could
        use the server through a host name that resolves to this machine (DNS rebinding).

        Raises:
            Refused: The host name is not one of this server.
        """
        if not self._access.is_open:
            return
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.lower() not in (*_HERE, self._config.host):
            raise Refused("wrong_token", f"without tenants the server must be addressed as {', '.join(_HERE)}")

    def writer(self, authorization: str) -> str:
        """Return the tenant for which the token of a request permits writing, and count the request for its rate limit.

        Raises:
            Refused: The token is wrong, or the tenant sends too often.
        """
        tenant = self._access.tenant(WRITE, authorization)
        second, count = self._rates.get(tenant, (0, 0))
        now = int(time.monotonic())
        self._rates[tenant] = (now, count + 1 if second == now else 1)
        if self._rates[tenant][1] > self._config.rate:
            raise Refused("too_many_requests", f"more than {self._config.rate} segments in a second", 1)
        return tenant

    async def body(self, length: str, receive: Receive) -> bytes:
        """Read the body of a request that sends a segment.

        Args:
            length: Content-Length that the client states.

        Raises:
            Refused: The body is too large or too slow; no more than the limit has been read.
            ClientGone: The client has disconnected.
        """
        most = self._config.body
        if length.isdigit() and int(length) > most:
            raise Refused("body_too_large", f"the body has {int(length):,} bytes; at most {most:,} are allowed")
        found = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in _parts(receive):
                    found += part
                    self._held += len(part)
                    if len(found) > most:
                        raise Refused("body_too_large", f"the body has more than {most:,} bytes")
                    if self._held > MAX_HELD:
                        raise Refused("too_many_requests", "other clients send too much at the moment", 1)
        except TimeoutError:
            text = f"{len(found):,} bytes of the body came in {_BODY_S} s"
            raise Refused("body_too_slow", text) from None
        finally:
            self._held -= len(found)
        return bytes(found)

    async def take_push(self, tenant: str, push: ForeignPush) -> None:
        """Store all profiles that an agent of another project pushes, or none if one of them is wrong.

        Raises:
            Refused: The push is wrong.
        """
        await self._take(tenant, push.body, None, partial(self._pushed, tenant, push))

    async def _take(
        self,
        tenant: str,
        body: bytes,
        here: Callable[[WorkLimit], list[ReadSegment]] | None,
        elsewhere: Callable[[], list[ReadSegment]],
    ) -> int:
        """Read and store the segments of a request, and return how many of them were new.

        A segment that exists already is no error: an agent that sends it again must learn that the server has it.

        Raises:
            Refused: A segment is wrong.
        """
        try:
            count = await self._threads.run(tenant, body, here, elsewhere, self._keep)
        except FormatError as error:
            raise Refused("bad_segment", str(error)) from None
        if count:
            self._numbers.count("segments", number=count)
            self._numbers.count("segment_bytes", number=len(body))
        return count

    def _keep(self, segments: Iterable[ReadSegment]) -> int:
        return sum(self._kept(rows, data) for rows, data in segments)

    def _pushed(self, tenant: str, push: ForeignPush) -> list[ReadSegment]:
        """Decode a push of another project's agent in a separate process.

        Raises:
            FormatError: The push is broken.
            Refused: A segment is wrong.
        """
        found = self._elsewhere(push.body, large_body_process.pushed, tenant, push, time.time_ns(), MAX_INFLATED)
        return [(self._adopted(rows), data) for rows, data in found]

    def _readings(
        self, tenant: str, name: SegmentName, data: bytes
    ) -> tuple[Callable[[WorkLimit], list[ReadSegment]], Callable[[], list[ReadSegment]]]:
        """Make two functions that read a received segment: one in this process, and one in another process.

        If this process has given up because of unknown frames, the other process also returns its frames for this
        process's cache.
        """
        lends = False

        def here(little: WorkLimit) -> list[ReadSegment]:
            nonlocal lends
            try:
                rows = rows_of(tenant, name, data, self._books.get_cache(tenant), MAX_INFLATED, little)
                _check_content(rows)
                return [(self._checked(rows), data)]
            except WorkLimitExceeded as much:
                lends = much.of_frames
                raise

        def elsewhere() -> list[ReadSegment]:
            rows = self._elsewhere(data, large_body_process.segment, tenant, name, data, MAX_INFLATED, lends)
            _check_content(rows)
            return [(self._adopted(rows), data)]

        return here, elsewhere

    def _elsewhere(self, body: bytes, function: Callable[..., _Found], *arguments: object) -> _Found:
        """Call a function on a request body in the process for large bodies, and return its result.

        Raises:
            PyprofError: The function raised it.
        """
        if size_of(body) > LARGE:
            return self._large.call(True, function, *arguments)
        reader = self._idle.pop()  # there are as many readers as threads that call this
        try:
            return reader.call(False, function, *arguments)
        finally:
            self._idle.append(reader)

    def _adopted(self, rows: SegmentRows) -> SegmentRows:
        """Check the rows that another process has read from a segment, and add their stacks to the tenant's stack cache
        in this process.

        Raises:
            Refused: The segment is wrong.
        """
        self._checked(rows)
        book = self._books.get_cache(rows.tenant)
        return replace(rows, book=book, stacks=book.adopted(rows.book, rows.stacks))

    def _checked(self, rows: SegmentRows) -> SegmentRows:
        """Check the limits of a received segment, and return its rows.

        Raises:
            Refused: The segment exceeds a limit.
        """
        self._check_service(rows.name)
        self._check_age(rows.name)
        self._series.count_series(rows.tenant, rows.name.day, rows.labels)
        return rows

    def _kept(self, rows: SegmentRows, data: bytes) -> bool:
        """Store a received segment, and return True if it was new to the server.

        Raises:
            Refused: The disk is full.
        """
        new = False
        self._indexer.expect(rows)
        try:
            new = self._files.store_segment(rows.tenant, rows.name, data)
        except DiskFull:
            self._health.report_failure(DISK_FULL)
            raise Refused(DISK_FULL) from None
        finally:
            if new:
                self._indexer.queue_rows(rows)
            else:
                self._indexer.forget([rows])
        return new

    def _named(self, path: bytes) -> SegmentName:
        """Parse the name of a segment from the path of a request.

        Raises:
            Refused: The name is wrong.
        """
        parts = path.decode("ascii", "replace").removeprefix(SEGMENTS).split("/")
        name = SegmentName.parse(*parts) if len(parts) == 3 and folder_of(unquote(parts[1])) == parts[1] else None
        if name is None or day_of(name.end_ns) != name.day:
            raise Refused("wrong_name")
        self._check_service(name)
        self._check_age(name)
        return name

    def _check_service(self, name: SegmentName) -> None:
        """Raise Refused for a service whose name has control characters, such as NUL or a line break."""
        if not name.service.isprintable():
            raise Refused("wrong_name", "the name of the service has control characters")

    def _check_age(self, name: SegmentName) -> None:
        now = time.time()
        age = now - name.end_ns / 1e9
        if age > self._config.max_age:
            raise Refused(
                "too_old", f"the window ended {age / 86400:.1f} days ago; windows of {self._config.days} days are kept"
            )
        if age < -_FUTURE_S:
            raise Refused("too_new", f"the window ends {-age:.0f} s in the future; at most {_FUTURE_S} s are allowed")


def _check_content(rows: SegmentRows) -> None:
    """Refuse a segment (raise Refused) if its contents state another service or day than its name. The server may have
    stored it already under its right name.
    """
    name = rows.name
    if rows.end_ns and abs(rows.end_ns - name.end_ns) > _MAX_END_DIFFERENCE_NS:
        stated, named = (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ns // 10**9)) for ns in (rows.end_ns, name.end_ns)
        )
        raise Refused("wrong_name", f"the window ends at {stated} UTC, but its name says {named}")
    for labels in rows.labels.values():
        service = dict(labels).get("service")
        if service is not None and folder_of(service) != name.folder and name.service != OTHER:
            raise Refused("wrong_name", f"the segment has samples of the service {service}, not of {name.service}")


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the chunks of a request body as they arrive.

    Raises:
        ClientGone: The client has disconnected.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def answer(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    named: Iterable[tuple[str, str]] = {**headers, "Content-Type": JSON, "Content-Length": str(len(body))}.items()
    pairs = [(name.lower().encode(), value.encode()) for name, value in named]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
