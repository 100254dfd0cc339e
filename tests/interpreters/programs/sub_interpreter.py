"""Runs code in a sub-interpreter, which sleeps there; with the argument "works": it works there, in two threads, a few
milliseconds each time; "deep": below a deep recursion. The module's name and its functions changed over the versions.
"""

import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

SLEEPS = """
import time

def inside():
    print("ready", flush=True)
    time.sleep(1000)

inside()
"""
WORKS = """
def spin():
    return sum(range(50_000))

def inside():
    for _ in range(20):
        spin()

inside()
"""


def run(number, code):
    execute = interpreters.exec if hasattr(interpreters, "exec") else interpreters.run_string
    execute(number, code)


def outside(code):
    run(interpreters.create(), code)


def works():
    number = interpreters.create()
    while True:
        run(number, WORKS)


def deep(n):
    if n:
        deep(n - 1)
    else:
        works()


if sys.argv[1:] == ["deep"]:
    sys.setrecursionlimit(2000)
    print("ready", flush=True)
    deep(1200)
if sys.argv[1:] == ["works"]:
    thread = threading.Thread(target=works, daemon=True)
    thread.start()
    print("ready", flush=True)
    works()
outside(SLEEPS)
