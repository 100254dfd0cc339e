"""Workers of gevent under its hub (libev's loop in C stands between): CALLS, printed first as JSON, function -> those
that may stand next outside it. Runs until killed.

What waits for the workers on the same C stack is shown outside them: the hub, and main, which had begun the hub.
"""

import json
import sys

import gevent
from gevent.pool import Pool

CALLS = {
    "main": ["<module>"],
    "early": ["main"],
    "rounds": ["main"],
    "leaf": ["worker", "step", "nested", "by_key", "begun", "main", "rounds", "early"],
    "worker": ["main", "early", "rounds"],
    "step": ["worker"],
    "nested": ["main", "early", "rounds"],
    "by_key": ["worker"],
    "begun": ["main", "early", "rounds"],
}


def leaf(n=8000):
    total = 0
    for i in range(n):
        total += i * i
    return total


def step(n):
    leaf()
    gevent.sleep(0)
    return leaf()


def by_key(n):
    gevent.sleep(0)
    return leaf()


def begun():
    leaf()


def worker(n):
    for i in range(5):
        step(i)
    sorted([3, 2, 1], key=by_key)
    gevent.spawn(begun).join()
    gevent.sleep(0.0001)


def nested(pool):
    leaf()
    pool.map(worker, range(3))


def early():
    gevent.sleep(0)


def rounds():
    gevent.joinall([gevent.spawn(worker, 1), gevent.spawn(worker, 2), gevent.spawn(nested, Pool(2))])


def main():
    early()
    while True:
        gevent.joinall([gevent.spawn(worker, 1), gevent.spawn(worker, 2)])
        rounds()
        leaf()


if __name__ == "__main__":
    print(json.dumps(CALLS))
    sys.stdout.flush()
    main()
