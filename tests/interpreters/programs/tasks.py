"""asyncio: a task that computes, awaited by a task, awaited by a task; prints "ready" and runs for two minutes."""

import asyncio
import time


async def leaf():
    print("ready", flush=True)
    end = time.time() + 120
    while time.time() < end:
        sum(range(1000))
        if int(end * 1000) % 7 == 99:
            await asyncio.sleep(0)


async def inner():
    await leaf()


async def middle():
    await helper()


async def helper():
    await asyncio.create_task(inner(), name="inner")


async def outer():
    async with asyncio.TaskGroup() as group:
        group.create_task(middle(), name="middle")


async def main():
    await asyncio.create_task(outer(), name="outer")


asyncio.run(main())
