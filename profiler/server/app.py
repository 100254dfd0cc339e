"""The HTTP interface: routes, limits, refusals. Work is done by threads: one question does not hold up another."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files as package_files
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyprof.agent.metrics import CONTENT_TYPE
from pyprof.agent.segments import SegmentName, folder_of
from pyprof.errors import FormatError
from pyprof.exporters.utf8 import dumps
from pyprof.server import answers
from pyprof.server.access import COOKIE, READ, WRITE, Access, Refused
from pyprof.server.config import ServerConfig
from pyprof.server.engine import StoreError
from pyprof.server.files import DiskFull, SegmentFiles
from pyprof.server.index import Indexer
from pyprof.server.numbers import Numbers
from pyprof.server.receiving import SENDERS, ForeignPush
from pyprof.server.rows import SegmentRows, rows_of
from pyprof.server.store import Store

_FUTURE_S = 600
MOST_INFLATED = 1 << 27
"""Bytes that a request may inflate to."""
_SEGMENTS = "/api/v1/segments/"
_HERE = ("localhost", "127.0.0.1", "[::1]")
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
_OWN = ("server", ("fleet.css", "uPlot.min.js", "uPlot.min.css", *(f"fleet.{name}.js" for name in (
    "api", "place", "elements", "overview", "line", "service", "app"))))  # fmt: skip
_SHARED = ("exporters", ("page.css", "page.theme.js", "page.format.js", "d3-format.min.js"))
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_JSON: Mapping[str, Callable[[Store, str, Mapping[str, str]], Any]] = {
    "services": answers.services,
    "labels": answers.labels,
    "timeline": answers.timeline,
    "functions": answers.functions,
    "builds": answers.builds,
}
_FILES: Mapping[str, Callable[[Store, str, Mapping[str, str]], tuple[bytes, str, str]]] = {
    "profile": answers.profile,
    "diff": answers.diff,
}


class FleetServer:
    """app: for an ASGI server. files, store, indexer: opened, and closed, by whoever has made them."""

    def __init__(
        self, config: ServerConfig, files: SegmentFiles, store: Store, indexer: Indexer, numbers: Numbers
    ) -> None:
        self._config, self._files, self._store, self._indexer = config, files, store, indexer
        self._access = Access(config.tenants)
        self._numbers = numbers
        self._rates: dict[str, tuple[int, int]] = {}
        found = {name: _asset(room, name) for room, names in (_OWN, _SHARED) for name in names}
        self._assets = {name: (data, _KINDS[name[name.rindex(".") :]]) for name, data in found.items()}
        self._page = _asset("server", "fleet.html")
        self.app = Starlette(
            routes=[
                Route("/", self._guarded(self._index), methods=["GET"]),
                Route("/assets/{name}", self._guarded(self._asset), methods=["GET"]),
                Route("/login", self._guarded(self._login), methods=["POST"]),
                Route("/metrics", self._guarded(self._metrics), methods=["GET"]),
                Route("/healthz", self._guarded(self._health), methods=["GET"]),
                Route("/api/v1/segments/{path:path}", self._guarded(self._take), methods=["POST"]),
                *(Route(path, self._guarded(self._take_push), methods=["POST"]) for path in SENDERS),
                Route("/api/v1/{question}", self._guarded(self._answer), methods=["GET"]),
            ]
        )

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Refusals become answers."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_host(request)
                return await handler(request)
            except Refused as refused:
                self._numbers.count("refused", refused.reason)
                headers = {**_SAFE, **({"Retry-After": str(refused.retry_s)} if refused.retry_s else {})}
                body = dumps({"reason": refused.reason, "error": str(refused)})
                return Response(body, refused.status, headers, "application/json")

        return guarded

    def _check_host(self, request: Request) -> None:
        """Without tokens a page of elsewhere, whose name leads here, must read nothing."""
        if not self._access.is_open:
            return
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.lower() not in (*_HERE, self._config.host):
            raise Refused("wrong_token", f"without tenants the server answers as {', '.join(_HERE)} only")

    async def _index(self, _request: Request) -> Response:
        headers = {**_SAFE, "Content-Security-Policy": _PAGE_POLICY}
        return Response(self._page, 200, headers, "text/html; charset=utf-8")

    async def _asset(self, request: Request) -> Response:
        found = self._assets.get(request.path_params["name"])
        if found is None:
            raise Refused("no_such_page")
        return Response(found[0], 200, {**_SAFE, "Cache-Control": "no-cache"}, found[1])

    async def _login(self, request: Request) -> Response:
        """The token of a reader as a cookie, for links and frames of the page."""
        header = request.headers.get("authorization", "")
        self._access.tenant(READ, header)
        answer = Response(b"{}", 200, _SAFE, "application/json")
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, header.partition(" ")[2].strip(), httponly=True, samesite="strict", secure=secure)
        return answer

    async def _metrics(self, request: Request) -> Response:
        self._tenant(READ, request)
        return Response(self._numbers.text(), 200, {**_SAFE, "Content-Type": CONTENT_TYPE})

    async def _health(self, _request: Request) -> Response:
        return Response("ok\n", 200, _SAFE, "text/plain")

    def _tenant(self, role: str, request: Request) -> str:
        cookie = request.cookies.get(COOKIE, "") if role == READ else ""
        return self._access.tenant(role, request.headers.get("authorization", ""), cookie)

    async def _take(self, request: Request) -> Response:
        """A segment of an agent: durable, or refused."""
        tenant = self._tenant(WRITE, request)
        name = self._named(request.scope["raw_path"])
        self._check_rate(tenant)
        data = await self._body(request)
        await run_in_threadpool(self._keep, tenant, name, data)
        self._numbers.count("segments")
        self._numbers.count("segment_bytes", number=len(data))
        return Response(b"{}", 200, _SAFE, "application/json")

    async def _take_push(self, request: Request) -> Response:
        """A push of another project's agent: all of it durable, or nothing of it kept."""
        tenant = self._tenant(WRITE, request)
        self._check_rate(tenant)
        data, words = await self._body(request), dict(request.query_params)
        kinds = request.headers.get("content-type", ""), request.headers.get("content-encoding", "")
        push = ForeignPush(request.url.path, words, *kinds, data)
        count = await run_in_threadpool(self._keep_all, tenant, push)
        self._numbers.count("segments", number=count)
        self._numbers.count("segment_bytes", number=len(data))
        return Response(push.answer[0], 200, _SAFE, push.answer[1])

    def _keep_all(self, tenant: str, push: ForeignPush) -> int:
        """How many segments. What was there is there: an agent that sends again must hear that it is done."""
        try:
            segments = push.segments(time.time_ns(), MOST_INFLATED)
            for name, _ in segments:
                self._check_age(name)
            rows = [(rows_of(tenant, name, data), name, data) for name, data in segments]
        except FormatError as error:
            raise Refused("bad_segment", str(error)) from None
        return sum(self._kept(tenant, name, data, found) for found, name, data in rows)

    def _keep(self, tenant: str, name: SegmentName, data: bytes) -> None:
        try:
            rows = rows_of(tenant, name, data)
        except FormatError as error:
            raise Refused("bad_segment", str(error)) from None
        if not self._kept(tenant, name, data, rows):
            raise Refused("segment_known")

    def _kept(self, tenant: str, name: SegmentName, data: bytes, rows: SegmentRows) -> bool:
        """Is it new? Raises Refused."""
        try:
            new = self._files.keep(tenant, name, data)
        except DiskFull:
            raise Refused("disk_full") from None
        if new:
            self._indexer.add(rows)
        return new

    def _named(self, path: bytes) -> SegmentName:
        """path: as it came; its parts are those of the segment's path in a spool. Raises Refused."""
        parts = path.decode("ascii", "replace").removeprefix(_SEGMENTS).split("/")
        name = SegmentName.parse(*parts) if len(parts) == 3 and folder_of(unquote(parts[1])) == parts[1] else None
        if name is None or SegmentName.new("x", name.end_ns).day != name.day:
            raise Refused("wrong_name")
        self._check_age(name)
        return name

    def _check_age(self, name: SegmentName) -> None:
        now = time.time()
        age = now - name.end_ns / 1e9
        if age > self._config.max_age:
            raise Refused("too_old", f"the window ended {age / 86400:.1f} days ago, {self._config.days} are kept")
        if age < -_FUTURE_S:
            raise Refused("too_new", f"the window ends in {-age:.0f} s, {_FUTURE_S} at most may be taken")

    def _check_rate(self, tenant: str) -> None:
        second, count = self._rates.get(tenant, (0, 0))
        now = int(time.monotonic())
        self._rates[tenant] = (now, count + 1 if second == now else 1)
        if self._rates[tenant][1] > self._config.rate:
            raise Refused("too_many_requests", f"more than {self._config.rate} segments in a second", 1)

    async def _body(self, request: Request) -> bytes:
        """Raises Refused before more than the limit has been read."""
        most = self._config.body
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise Refused("body_too_large", f"the body has {int(length):,} bytes, {most:,} at most are taken")
        found = bytearray()
        async for part in request.stream():
            found += part
            if len(found) > most:
                raise Refused("body_too_large", f"the body has more than {most:,} bytes")
        return bytes(found)

    async def _answer(self, request: Request) -> Response:
        tenant = self._tenant(READ, request)
        question, words = request.path_params["question"], dict(request.query_params)
        try:
            if question in _JSON:
                found = await run_in_threadpool(_JSON[question], self._store, tenant, words)
                answer = Response(dumps(found), 200, _SAFE, "application/json")
            elif question in _FILES:
                data, kind, name = await run_in_threadpool(_FILES[question], self._store, tenant, words)
                shown = "inline" if kind.startswith("text/html") else "attachment"
                headers = {**_SAFE, "Content-Disposition": f'{shown}; filename="{name}"'}
                answer = Response(data, 200, {**headers, "Content-Security-Policy": "frame-ancestors 'self'"}, kind)
            else:
                raise Refused("no_such_page")
        except StoreError:
            raise Refused("store_failed") from None
        self._numbers.count("questions")
        return answer


def _asset(room: str, name: str) -> bytes:
    return package_files(f"pyprof.{room}").joinpath("assets", name).read_bytes()
