"""Tests of queries whose client has gone, and of database connections on which a query was killed."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue

import pytest
from starlette.requests import Request

from pyprof.fleet.server.authorization import Access, Refused
from pyprof.fleet.server.http_app import FleetServer
from pyprof.fleet.server.query.profile_queries import ClientDisconnected, RunningQuery
from pyprof.fleet.server.store.clickhouse_engine import ChdbEngine, StoreError
from pyprof.fleet.server.store.database import Store
from tests.server.test_rollups import Told

pytestmark = pytest.mark.system


class Killed:
    """A chdb client whose query is killed. Its next response would begin with the remainder of this one."""

    closed = False

    def raw_query(self, _sql: str) -> bytes:
        raise ValueError("Code: 394. DB::Exception: Query was cancelled")

    def close(self) -> None:
        self.closed = True


def test_connection_on_which_a_question_was_killed_answers_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clients = ChdbEngine.__new__(ChdbEngine), [Killed(), Killed()]
    made = list(clients)
    for name, value in (("_error", ValueError), ("_idle", SimpleQueue()), ("_open", made.pop)):
        monkeypatch.setattr(engine, name, value, raising=False)
    for left in (1, 0):
        with pytest.raises(StoreError) as refused:
            engine.rows("SELECT 1")
        assert (refused.value.code, len(made), engine._idle.empty()) == (394, left, True)
    assert all(client.closed for client in clients)


def test_question_whose_sums_no_profile_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> None:
        raise OverflowError("values that are too large together")

    server = FleetServer.__new__(FleetServer)
    monkeypatch.setattr(server, "_found", found, raising=False)
    monkeypatch.setattr(server, "access", Access(()), raising=False)
    scope = {"type": "http", "headers": [], "query_string": b"", "path_params": {"question": "services"}}
    with pytest.raises(Refused, match="too large together") as refused:
        asyncio.run(server._answer(Request(scope)))
    assert refused.value.reason == "question_too_dear"


def test_question_that_is_given_up_asks_nothing_more_and_the_database_is_told() -> None:
    engine, asked = Told(), RunningQuery(30, 1 << 30)
    store = Store(engine)
    questions = store.make_queries(asked)
    assert questions._rows("SELECT 1") == [[7, 9]]
    store.give_up(asked)
    assert engine.told == [f"KILL QUERY WHERE query LIKE '/* {asked.mark} */%' ASYNC"]
    with pytest.raises(ClientDisconnected):
        questions._rows("SELECT 1")
