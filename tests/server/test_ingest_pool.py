"""Tests of the threads that parse pushed segments: large bodies and a slow disk delay no small body."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.ingest.ingest_app import ELSEWHERE, MIDDLE, SMALL, IngestThreads
from pyprof.importers.profile_builder import WorkLimit, WorkLimitExceeded
from tests.server.serving import PATIENCE_S

pytestmark = pytest.mark.system

LARGE = bytes(9 << 20)
INFLATING = gzip.compress(b"x")[:-4] + (64 << 20).to_bytes(4, "little")


async def run(
    threads: IngestThreads, tenant: str, body: bytes, read: Callable[[], Any], keep: Callable[[Any], Any]
) -> Any:
    """Run the reading function, in this process or in another one."""
    return await threads.run(tenant, body, lambda _: read(), read, keep)


def test_large_bodies_hold_up_no_small_one_and_a_tenant_has_few_that_wait() -> None:
    async def several() -> None:
        threads, begun, gate = IngestThreads(), threading.Event(), threading.Event()

        def waits() -> bool:
            begun.set()
            return gate.wait()

        one = [
            asyncio.create_task(run(threads, "one", body, waits, bool)) for body in (LARGE, INFLATING, LARGE, INFLATING)
        ]
        try:
            assert await run(threads, "one", gzip.compress(b"x"), partial(begun.wait, PATIENCE_S), bool) is True
            with pytest.raises(Refused, match="4 bodies that are much work wait of the tenant, 4 at most") as refused:
                await run(threads, "one", INFLATING, gate.is_set, bool)
            assert (refused.value.reason, refused.value.retry_s) == ("too_many_requests", 30)
            other = asyncio.create_task(run(threads, "other", LARGE, gate.is_set, bool))
            await asyncio.sleep(0)
            assert not any(each.done() for each in (*one, other))
        finally:
            gate.set()
        try:
            assert await asyncio.wait_for(asyncio.gather(*one, other), PATIENCE_S) == [True] * 5
            assert await run(threads, "one", LARGE, gate.is_set, bool) is True, "none waits any more"
        finally:
            threads.close()

    asyncio.run(several())


def test_bodies_of_a_middle_size_hold_up_no_small_one_and_a_disk_that_waits_no_other() -> None:
    async def several() -> None:
        threads, begun, gate = IngestThreads(), threading.Event(), threading.Event()

        def waits(*_: bool) -> bool:
            begun.set()
            return gate.wait()

        reading = asyncio.create_task(run(threads, "one", bytes(1 << 20), waits, bool))
        try:
            assert await run(threads, "one", b"", partial(begun.wait, PATIENCE_S), bool) is True
            begun.clear()
            writing = asyncio.create_task(run(threads, "one", b"", gate.is_set, waits))
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            assert await run(threads, "one", b"", gate.is_set, bool) is False
            assert not any(each.done() for each in (reading, writing))
        finally:
            gate.set()
        for each in (reading, writing):
            assert await asyncio.wait_for(each, PATIENCE_S)
        threads.close()

    asyncio.run(several())


def test_what_turns_out_to_be_much_work_is_read_elsewhere_and_holds_up_no_small_one() -> None:
    async def several() -> None:
        threads, gate = IngestThreads(), threading.Event()
        small, middle = b"", bytes(1 << 20)
        told: list[WorkLimit] = []

        def much(little: WorkLimit) -> int:
            told.append(little)
            raise WorkLimitExceeded

        waiting = [
            asyncio.create_task(threads.run("one", body, much, gate.wait, bool)) for body in (small, middle) * 32
        ]
        try:
            while len(told) < 64:
                assert await threads.run("one", small, lambda _: 1, int, bool)
            with pytest.raises(Refused, match="64 bodies that are much work"):
                await threads.run("one", small, much, gate.wait, bool)
            with pytest.raises(Refused, match="64 bodies that are much work"):
                await threads.run("one", LARGE, much, gate.wait, bool)
            others = asyncio.create_task(threads.run("other", small, much, gate.wait, bool))
            assert not any(each.done() for each in waiting)
        finally:
            gate.set()
        assert all(await asyncio.wait_for(asyncio.gather(*waiting, others), PATIENCE_S))
        assert set(told) == {SMALL, MIDDLE}
        threads.close()

    asyncio.run(several())


def test_several_that_are_much_work_are_read_at_once() -> None:
    async def together() -> None:
        threads, all_here = IngestThreads(), threading.Barrier(ELSEWHERE)
        found = [threads.run("one", b"", None, partial(all_here.wait, PATIENCE_S), str) for _ in range(ELSEWHERE)]
        assert set(await asyncio.gather(*found)) == set(map(str, range(ELSEWHERE)))
        threads.close()

    asyncio.run(together())


def test_large_bodies_that_have_not_begun_when_the_server_ends_are_not_read() -> None:
    async def ends() -> None:
        threads, begun, gate, read = IngestThreads(), threading.Event(), threading.Event(), list[int]()

        def waits() -> bool:
            begun.set()
            return gate.wait()

        first = asyncio.create_task(run(threads, "one", LARGE, waits, bool))
        second = asyncio.create_task(run(threads, "one", LARGE, partial(partial(read.append, 2), str), bool))
        try:
            assert await run(threads, "one", b"", partial(begun.wait, PATIENCE_S), bool) is True
            threads.close()
            with pytest.raises(asyncio.CancelledError):
                await second
        finally:
            gate.set()
        assert await asyncio.wait_for(first, PATIENCE_S) is True
        with pytest.raises(RuntimeError):
            await run(threads, "one", LARGE, partial(read.append, 3), str)
        assert not read

    asyncio.run(ends())
