"""The HTTP interface of the server: routes, limits, refusals. Queries run in threads, so that none delays another."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files as package_files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyprof.fleet.openmetrics import CONTENT_TYPE
from pyprof.fleet.server.authorization import COOKIE, READ, Access, Refused
from pyprof.fleet.server.config import ServerConfig
from pyprof.fleet.server.health_and_metrics import RELOAD_FAILED
from pyprof.fleet.server.ingest.foreign_pushes import SENDERS, ForeignPush
from pyprof.fleet.server.ingest.ingest_app import JSON, SAFE, SEGMENTS, ClientGone, IngestApp
from pyprof.fleet.server.query import query_api
from pyprof.fleet.server.query.profile_queries import ClientDisconnected, ClientQueries, RunningQuery
from pyprof.fleet.server.query.sample_selection import check_words
from pyprof.fleet.server.request_limits import BodyRateLimit, Receive, Scope, Send
from pyprof.fleet.server.start_and_shutdown import ServerParts
from pyprof.fleet.server.store.clickhouse_engine import StoreError
from pyprof.fleet.server.store.database import MAX_SILENCE_S
from pyprof.model.fleet_loss_reasons import FILES_MISSING
from pyprof.model.untrusted_text import dump_json

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REFUSAL_POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'self'"
_OWN = ("fleet.server", ("fleet.css", "uPlot.min.js", "uPlot.min.css", *(f"fleet.{name}.js" for name in (
    "api", "place", "elements", "overview", "line", "service", "app"))))  # fmt: skip
_SHARED = ("exporters", ("page.css", "page.theme.js", "page.format.js", "d3-format.min.js"))
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_STORE_LOOK_S = 1.0
"""Interval in seconds at which the server, during a query, checks whether the database still answers."""
Words = Mapping[str, str]
_Found = TypeVar("_Found")
_JSON: Mapping[str, Callable[[ClientQueries, str, Words], Any]] = {
    "services": query_api.services,
    "labels": query_api.labels,
    "timeline": query_api.timeline,
    "functions": query_api.functions,
    "builds": query_api.builds,
}
_FILES: Mapping[str, Callable[[ClientQueries, str, Words], tuple[bytes, str, str]]] = {
    "profile": query_api.profile,
    "diff": query_api.diff,
}


class FleetServer:
    """The pyprof server as an ASGI application (`app`). It uses a database, files and an indexer, which the caller
    opens and closes.
    """

    def __init__(self, config: ServerConfig, parts: ServerParts) -> None:
        self._config, self._store, self._numbers = config, parts.store, parts.numbers
        self._symbols, self._health, self._indexer = parts.symbols, parts.health, parts.indexer
        self.access = Access(config.tenants)
        self._taking = IngestApp(config, parts, self.access)
        found = {name: _asset(room, name) for room, names in (_OWN, _SHARED) for name in names}
        self._assets = {name: (data, _KINDS[name[name.rindex(".") :]]) for name, data in found.items()}
        self._page = _asset("fleet.server", "fleet.html")
        self.app = BodyRateLimit(self._any)
        self._others = Starlette(
            routes=[
                Route("/", self._guarded(self._index), methods=["GET"]),
                Route("/assets/{name}", self._guarded(self._asset), methods=["GET"]),
                Route("/login", self._guarded(self._login), methods=["POST"]),
                Route("/metrics", self._guarded(self._metrics), methods=["GET"]),
                Route("/healthz", self._guarded(self._answer_health), methods=["GET"]),
                Route("/readyz", self._guarded(self._answer_ready), methods=["GET"]),
                *(Route(path, self._guarded(self._take_push), methods=["POST"]) for path in SENDERS),
                Route("/api/v1/symbols/{build_id}", self._guarded(self._take_symbols), methods=["POST"]),
                Route("/api/v1/{question}", self._guarded(self._answer), methods=["GET"]),
            ],
            exception_handlers={404: self._refuse_address, 405: self._refuse_address},
        )

    def close(self) -> None:
        self._taking.close()

    async def _any(self, scope: Scope, receive: Receive, send: Send) -> None:
        to_take = scope["type"] == "http" and scope["path"].startswith(SEGMENTS)
        await (self._taking if to_take else self._others)(scope, receive, send)

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return a request handler that turns the exception Refused into a response."""

        async def guarded(request: Request) -> Response:
            try:
                self._taking.check_host(request.headers.get("host", ""))
                return await handler(request)
            except Refused as refused:
                client = request.client.host if request.client is not None else ""
                status, body, headers = self._taking.refusal(refused, client)
                if request.headers.get("accept", "").startswith("text/html"):  # a browser shows it, also in a frame
                    headers = {**headers, "Content-Security-Policy": _REFUSAL_POLICY}
                    return Response(refusal_page(refused), status, headers, "text/html; charset=utf-8")
                return Response(body, status, headers, JSON)
            except ClientGone:
                return Response(b"", 499)

        return guarded

    async def _refuse_address(self, request: Request, _error: Exception) -> Response:
        async def refuse(_: Request) -> Response:
            raise Refused("no_such_page")

        return await self._guarded(refuse)(request)

    async def _index(self, _request: Request) -> Response:
        headers = {**SAFE, "Content-Security-Policy": _PAGE_POLICY}
        return Response(self._page, 200, headers, "text/html; charset=utf-8")

    async def _asset(self, request: Request) -> Response:
        found = self._assets.get(request.path_params["name"])
        if found is None:
            raise Refused("no_such_page")
        return Response(found[0], 200, {**SAFE, "Cache-Control": "no-cache"}, found[1])

    async def _login(self, request: Request) -> Response:
        """Return a response that sets a reader's token as a cookie, which links and inner frames of the page need."""
        header = request.headers.get("authorization", "")
        self.access.tenant(READ, header)
        answer = Response(b"{}", 200, SAFE, JSON)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, header.partition(" ")[2].strip(), httponly=True, samesite="strict", secure=secure)
        return answer

    async def _metrics(self, request: Request) -> Response:
        self._tenant(READ, request)
        return Response(self._numbers.text(), 200, {**SAFE, "Content-Type": CONTENT_TYPE})

    async def _answer_health(self, _request: Request) -> Response:
        """Answer a request for /healthz with 200, or with 503 and the reasons for which the server cannot do its work.
        A failed reload and missing files are stated with 200, because the server continues: with its previous tokens,
        and with the rows of its database.
        """
        failures = self._health.failures
        status = 503 if failures else 200
        found = [
            {"reason": reason, "error": text, "hint": self._health.hint(reason)} for reason, text in failures.items()
        ]
        if self._health.reload_error:
            error, hint = self._health.reload_error, "pyprof server --config FILE --check"
            found.append({"reason": RELOAD_FAILED, "error": error, "hint": hint})
        if count := self._indexer.without_file:
            error = f"{FILES_MISSING.sentence} Windows: {count:,}."
            found.append({"reason": FILES_MISSING.name, "error": error, "hint": FILES_MISSING.hint})
        if not found:
            return Response("ok\n", 200, SAFE, "text/plain")
        return Response(dump_json({"failures": found}), status, SAFE, JSON)

    async def _answer_ready(self, request: Request) -> Response:
        """Answer a request for /readyz. The response is that for /healthz, but 503 until each health check has run
        once.
        """
        if self._health.is_checked:
            return await self._answer_health(request)
        starting = Refused("starting")
        found = [{"reason": starting.reason, "error": str(starting), "hint": starting.hint}]
        return Response(dump_json({"failures": found}), starting.status, SAFE, JSON)

    def _tenant(self, role: str, request: Request) -> str:
        cookie = request.cookies.get(COOKIE, "") if role == READ else ""
        return self.access.tenant(role, request.headers.get("authorization", ""), cookie)

    async def _take_push(self, request: Request) -> Response:
        """Store a profile that another project's agent pushes to the server."""
        tenant = self._taking.writer(request.headers.get("authorization", ""))
        data = await self._taking.body(request.headers.get("content-length", ""), request.receive)
        kinds = request.headers.get("content-type", ""), request.headers.get("content-encoding", "")
        push = ForeignPush(request.url.path, dict(request.query_params), *kinds, data)
        await self._taking.take_push(tenant, push)
        return Response(push.answer[0], 200, SAFE, push.answer[1])

    async def _take_symbols(self, request: Request) -> Response:
        """Store a symbol file that a client uploads."""
        tenant = self._taking.writer(request.headers.get("authorization", ""))
        data = await self._taking.body(request.headers.get("content-length", ""), request.receive)
        await run_in_threadpool(self._symbols.store_file, tenant, request.path_params["build_id"].lower(), data)
        return Response(b"{}", 200, SAFE, JSON)

    async def _answer(self, request: Request) -> Response:
        tenant = self._tenant(READ, request)
        question, words = request.path_params["question"], dict(request.query_params)
        try:
            if question in query_api.WORDS:
                check_words(words, query_api.WORDS[question], query_api.SIDES.get(question, ("",)))
            if question in _JSON:
                found = await self._found(request, _JSON[question], tenant, words)
                answer = Response(dump_json(found), 200, SAFE, JSON)
            elif question in _FILES:
                data, kind, name = await self._found(request, _FILES[question], tenant, words)
                shown = "inline" if kind.startswith("text/html") else "attachment"
                headers = {**SAFE, "Content-Disposition": f'{shown}; filename="{name}"'}
                answer = Response(data, 200, {**headers, "Content-Security-Policy": "frame-ancestors 'self'"}, kind)
            else:
                raise Refused("no_such_page")
        except StoreError:
            raise Refused("store_failed") from None
        except OverflowError as error:
            raise Refused("question_too_dear", str(error)) from None
        self._numbers.count("questions")
        return answer

    async def _found(
        self, request: Request, find: Callable[[ClientQueries, str, Words], _Found], tenant: str, words: Words
    ) -> _Found:
        """Run a query of a client in a thread, and cancel it if the client disconnects.

        Raises:
            Refused: The query is wrong or too expensive, or the database has not answered for too long.
            StoreError: The database failed.
            ClientGone: The client has disconnected.
        """
        asked = RunningQuery(int(self._config.question_time), self._config.question_memory)
        self._check_store(asked)
        work = asyncio.ensure_future(
            run_in_threadpool(find, self._store.make_queries(asked, self._symbols), tenant, words)
        )
        going = asyncio.ensure_future(_gone(request))
        try:
            while not (work.done() or going.done()):
                self._check_store(asked)
                await asyncio.wait((work, going), timeout=_STORE_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        except Refused:  # the thread waits until its statement fails
            work.add_done_callback(_ignore_outcome)
            raise
        finally:
            going.cancel()
        try:
            if not work.done():
                self._numbers.count("questions_given_up")
                await run_in_threadpool(self._store.give_up, asked)
            return await work
        except ClientDisconnected:
            raise ClientGone from None

    def _check_store(self, asked: RunningQuery) -> None:
        """Raise Refused if the database has not answered for so long that the query would only wait for it."""
        if self._store.is_silent:
            asked.gone.set()
            raise Refused("store_failed", f"The database has not answered for {MAX_SILENCE_S:.0f} s.")


def refusal_page(refused: Refused) -> str:
    """Return a short HTML page that says why a query was refused and what helps. It is shown in place of a flame
    graph.
    """
    lines = [str(refused), *([f"Hint: {refused.hint}."] if refused.hint else [])]
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    head = '<meta charset="utf-8"><link rel="stylesheet" href="/assets/page.css"><title>pyprof</title>'
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{text}</body></html>'


def _ignore_outcome(work: asyncio.Future[Any]) -> None:
    """Drop the result or the error of a query whose client already has a response. Otherwise asyncio would log the
    error.
    """
    if not work.cancelled():
        work.exception()


async def _gone(request: Request) -> None:
    """Wait until the client that sent a request has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _asset(room: str, name: str) -> bytes:
    return package_files(f"pyprof.{room}").joinpath("assets", name).read_bytes()
