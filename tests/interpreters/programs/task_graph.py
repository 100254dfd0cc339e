"""asyncio: tasks that await each other in many ways. Prints who calls or awaits whom (callee -> its callers), one line
of JSON, and runs for two minutes. A task that several await, or nobody, stands below <module>.

Arguments: ways (functions), all without any. --naps=N: where spin() was called N times, it sleeps for two minutes; =0:
it sleeps for 2 ms each time.
"""

import asyncio
import json
import sys
import time

DEEP = 40
INWARD = 80
CALLERS = {
    "<module>": [],
    "main": ["<module>"],
    "spin": ["leaf", "one", "two", "member", "shared", "last", "link", "low", "patient", "kept", "by_key", "first"],
    "by_key": ["leaf"],
    "chain": ["main"],
    "middle": ["chain"],
    "inner": ["middle"],
    "leaf": ["inner"],
    "gathering": ["main"],
    "one": ["gathering"],
    "two": ["gathering"],
    "group": ["main"],
    "member": ["group"],
    "both": ["main"],
    "left": ["both"],
    "right": ["both"],
    "shared": ["<module>", "both"],
    "remaining": ["main"],
    "last": ["remaining"],
    "deep": ["main"],
    "link": ["link", "deep", "<module>"],
    "inward": ["main", "inward"],
    "low": ["inward"],
    "waiting": ["main"],
    "patient": ["waiting"],
    "shielding": ["main"],
    "kept": ["shielding"],
    "circle": ["main"],
    "first": ["second", "<module>", "circle"],
    "second": ["first", "<module>"],
}
NAPS = next((int(argument[7:]) for argument in sys.argv if argument.startswith("--naps=")), -1)
WAYS = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
EACH = ["chain", "gathering", "group", "both", "remaining", "deep", "inward", "waiting", "shielding", "circle"]
CALLS = []


def spin():
    CALLS.append(1)
    if len(CALLS) == NAPS:
        time.sleep(120)
    if NAPS == 0:
        time.sleep(0.002)
    return sum(range(500))


async def chain():
    await asyncio.create_task(middle())


async def middle():
    await asyncio.create_task(inner())


async def inner():
    await leaf()


async def leaf():
    def by_key(_):
        return spin()

    spin()
    sorted(range(3), key=by_key)


async def gathering():
    await asyncio.gather(one(), two())


async def one():
    spin()
    await asyncio.sleep(0)
    spin()


async def two():
    spin()


async def group():
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(member())


async def member():
    spin()


async def both():
    task = asyncio.create_task(shared())
    await asyncio.gather(left(task), right(task))


async def left(task):
    await task


async def right(task):
    await task


async def shared():
    for _ in range(3):
        spin()
        await asyncio.sleep(0)
    spin()


async def remaining():
    """A set of tasks that await one, and all but one of them leave."""
    task, own = asyncio.create_task(last()), asyncio.current_task()
    others = [asyncio.get_running_loop().create_future() for _ in range(20)]
    for other in (*others, own):
        asyncio.future_add_to_awaited_by(task, other)
    for other in others:
        asyncio.future_discard_from_awaited_by(task, other)
    await task


async def last():
    spin()


async def deep():
    await link(DEEP)


async def link(count):
    if count:
        await asyncio.create_task(link(count - 1))
    for _ in range(3):
        spin()


async def inward(count):
    if count:
        await inward(count - 1)
    else:
        await asyncio.create_task(low())


async def low():
    spin()


async def waiting():
    await asyncio.wait_for(asyncio.create_task(patient()), 60)


async def patient():
    spin()


async def shielding():
    await asyncio.shield(kept())


async def kept():
    spin()


async def circle():
    """Nobody but the second one awaits the first one, which is said to await the second one."""
    task = asyncio.create_task(first())
    while not task.done():
        await asyncio.sleep(0)


async def first():
    own = asyncio.current_task()
    asyncio.future_add_to_awaited_by(asyncio.create_task(second(own)), own)
    await asyncio.sleep(0)
    spin()


async def second(task):
    await task


async def main(names):
    print(json.dumps(CALLERS), flush=True)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for name in names:
            await globals()[name](*([INWARD] if name == "inward" else []))


asyncio.run(main(WAYS or EACH))
