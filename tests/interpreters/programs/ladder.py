"""A program that knows its own stack: Python, C, Python, C; it writes the stack down and sleeps in the same line.

usage: ladder.py [thread]. Output: one JSON line, [name, line] of each frame, innermost first. Runs on Python 3.8 and
later. The name is co_qualname where the version has it.
"""

import contextlib
import ctypes
import functools
import json
import sys
import threading
import time


def say():
    """The stack of the caller, written out."""
    stack, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        stack.append([getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    print(json.dumps(stack), flush=True)
    return 1000


def leaf():
    time.sleep(say())


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


def called_by_ctypes(value):
    leaf()
    return value


def by_ctypes():
    return CALLBACK(called_by_ctypes)(3)


class Made:
    def __init__(self, value):
        self.value = value
        by_ctypes()

    @property
    def attribute(self):
        return Made(1)

    def __call__(self, obj):
        return json.dumps(obj, default=self.default)

    @staticmethod
    def default(obj):
        return 1 if by_reduce() else 2


def pair(a, b):
    return a + (0 if Made(b) else 1)


def by_reduce():
    return functools.reduce(pair, [1, 2])


def inner_generator():
    maker = Made.__new__(Made)
    yield maker(object())


def generator():
    yield from inner_generator()


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        try:
            raise ValueError("first")
        except ValueError:
            return function(*args)

    return wrapper


@decorated
def drain():
    return list(generator())


def for_loop():
    for _ in (x for x in [drain] if x()):
        pass


def key(value):
    for_loop()
    return value


def by_sorted():
    return sorted([1], key=key)


def recursion(depth):
    if depth == 0:
        return by_sorted()
    return recursion(depth - 1)


async def coroutine():
    return (lambda: recursion(500))()


def by_send():
    with contextlib.suppress(StopIteration):
        coroutine().send(None)


def main():
    functools.partial(by_send)()


if __name__ == "__main__":
    if sys.argv[1:] == ["thread"]:
        thread = threading.Thread(target=main, name="Ladder")
        thread.start()
        thread.join()
    else:
        main()
