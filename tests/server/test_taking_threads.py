"""Who reads what is sent: a few threads, so that large bodies and a slow disk hold up nobody."""

from __future__ import annotations

import asyncio
import gzip
import threading
from functools import partial

import pytest

from pyprof.server.access import Refused
from pyprof.server.taking_threads import TakingThreads
from tests.server.serving import PATIENCE_S

LARGE = bytes(9 << 20)
INFLATING = gzip.compress(b"x")[:-4] + (64 << 20).to_bytes(4, "little")


def test_large_bodies_hold_up_no_small_one_and_a_tenant_has_few_that_wait() -> None:
    async def several() -> None:
        threads, begun, gate = TakingThreads(), threading.Event(), threading.Event()

        def waits() -> bool:
            begun.set()
            return gate.wait()

        one = [
            asyncio.create_task(threads.run("one", body, waits, bool)) for body in (LARGE, INFLATING, LARGE, INFLATING)
        ]
        try:
            assert await threads.run("one", gzip.compress(b"x"), partial(begun.wait, PATIENCE_S), bool) is True
            with pytest.raises(Refused, match="4 large bodies of the tenant wait, 4 at most") as refused:
                await threads.run("one", INFLATING, gate.is_set, bool)
            assert (refused.value.reason, refused.value.retry_s) == ("too_many_requests", 30)
            other = asyncio.create_task(threads.run("other", LARGE, gate.is_set, bool))
            await asyncio.sleep(0)
            assert not any(each.done() for each in (*one, other))
        finally:
            gate.set()
        try:
            assert await asyncio.wait_for(asyncio.gather(*one, other), PATIENCE_S) == [True] * 5
            assert await threads.run("one", LARGE, gate.is_set, bool) is True, "none waits any more"
        finally:
            threads.close()

    asyncio.run(several())


def test_bodies_of_a_middle_size_hold_up_no_small_one_and_a_disk_that_waits_no_other() -> None:
    async def several() -> None:
        threads, begun, gate = TakingThreads(), threading.Event(), threading.Event()

        def waits(*_: bool) -> bool:
            begun.set()
            return gate.wait()

        reading = asyncio.create_task(threads.run("one", bytes(1 << 20), waits, bool))
        try:
            assert await threads.run("one", b"", partial(begun.wait, PATIENCE_S), bool) is True
            begun.clear()
            writing = asyncio.create_task(threads.run("one", b"", gate.is_set, waits))
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            assert await threads.run("one", b"", gate.is_set, bool) is False
            assert not any(each.done() for each in (reading, writing))
        finally:
            gate.set()
        for each in (reading, writing):
            assert await asyncio.wait_for(each, PATIENCE_S)
        threads.close()

    asyncio.run(several())


def test_large_bodies_that_have_not_begun_when_the_server_ends_are_not_read() -> None:
    async def ends() -> None:
        threads, begun, gate, read = TakingThreads(), threading.Event(), threading.Event(), list[int]()

        def waits() -> bool:
            begun.set()
            return gate.wait()

        first = asyncio.create_task(threads.run("one", LARGE, waits, bool))
        second = asyncio.create_task(threads.run("one", LARGE, partial(partial(read.append, 2), str), bool))
        try:
            assert await threads.run("one", b"", partial(begun.wait, PATIENCE_S), bool) is True
            threads.close()
            with pytest.raises(asyncio.CancelledError):
                await second
        finally:
            gate.set()
        assert await asyncio.wait_for(first, PATIENCE_S) is True
        with pytest.raises(RuntimeError):
            await threads.run("one", LARGE, partial(read.append, 3), str)
        assert not read

    asyncio.run(ends())
