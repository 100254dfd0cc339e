"""A task, awaited by another one, runs a greenlet, which sleeps for two minutes; prints "ready"."""

import asyncio
import time

import greenlet


def inside():
    print("ready", flush=True)
    time.sleep(120)


def between():
    greenlet.greenlet(inside).switch()


async def leaf():
    between()


async def outer():
    await asyncio.create_task(leaf())


asyncio.run(outer())
