"""A busy program whose call graph is known: CALLS, printed first as JSON, callee -> its callers. Runs until killed."""

import contextlib
import ctypes
import functools
import json
import sys
import threading

CALLS = {
    "main": ["<module>", "run"],
    "work": ["main"],
    "leaf": ["work", "by_reduce", "by_callback", "generator", "call", "deep"],
    "by_reduce": ["work"],
    "by_callback": ["work"],
    "generator": ["work", "drain"],
    "drain": ["work"],
    "call": ["work"],
    "deep": ["deep", "work"],
    "coroutine": ["work"],
}
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


def leaf(n):
    total = 0
    for i in range(n):
        total += i * i
    return total


def by_reduce(a, b):
    return leaf(b % 30)


def by_callback(n):
    return leaf(n) & 0xFF


def generator():
    for i in range(10):
        yield leaf(i)


def drain():
    for _ in generator():
        pass


def call(n):
    return leaf(n)


def deep(n):
    return deep(n - 1) if n else leaf(20)


async def coroutine():
    return 1


CALLED = CALLBACK(by_callback)


def work():
    functools.reduce(by_reduce, range(20))
    CALLED(20)
    list(generator())
    drain()
    sorted(range(20), key=call)
    json.loads("[1, 2, 3]")
    deep(30)
    with contextlib.suppress(StopIteration):
        coroutine().send(None)
    leaf(50)


def main():
    while True:
        work()


if __name__ == "__main__":
    print(json.dumps(CALLS), flush=True)
    for _ in range(int(sys.argv[1]) if sys.argv[1:] else 0):
        threading.Thread(target=main, daemon=True).start()
    main()
