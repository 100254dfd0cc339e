"""Greenlets in a known order: CALLS, printed first as JSON, function -> those that may stand next outside it (its
caller, or whoever switched to the greenlet that begins with it). Runs until killed.

The parents of a greenlet are resumed and suspended again at other depths, through Python calls and through C.
"""

import json
import sys

import greenlet

CALLS = {
    "main": ["<module>"],
    "leaf": ["main", "first", "second", "inside", "deeper", "short", "by_key"],
    "start": ["main"],
    "by_key": ["start"],
    "first": ["by_key"],
    "inside": ["first"],
    "second": ["inside"],
    "deeper": ["second", "deeper"],
    "short": ["main", "between"],
    "between": ["main"],
}


def leaf(n=8000):
    total = 0
    for i in range(n):
        total += i * i
    return total


def deeper(n):
    if n:
        return deeper(n - 1)
    return leaf()


def second():
    leaf()
    while True:
        deeper(3)
        greenlet.getcurrent().parent.switch()
        leaf()


def inside(child):
    leaf()
    child.switch()
    leaf()


def first():
    child = greenlet.greenlet(second)
    while True:
        leaf()
        for _ in range(3):
            inside(child)
        greenlet.getcurrent().parent.switch()


def by_key(n):
    leaf()
    greenlet.greenlet(first).switch()
    return n


def start():
    return sorted([1], key=by_key)


def short():
    g = greenlet.greenlet(leaf)
    g.switch()


def between(n):
    short()
    return n


def main():
    while True:
        start()
        short()
        list(map(between, [1, 2]))
        leaf()


if __name__ == "__main__":
    print(json.dumps(CALLS))
    sys.stdout.flush()
    main()
