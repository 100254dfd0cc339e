"""`python3 frames.py SECONDS` -> {"work": rounds}: one busy thread whose innermost function is 30 frames deep."""

import json
import sys
import time

DEPTH = 26


def add(total, n):
    return total + n * n % 7


def sums(rows):
    total = 0
    for row in rows:
        total = add(total, row)
    return total


def pick(rows):
    return sorted(rows, key=lambda row: -row)[:8]


def leaf(n):
    rows = [(n * 31 + i * 17) % 1009 for i in range(60)]
    return sums(rows) + sums(pick(rows)) + len(json.dumps(rows))


def down(depth, n):
    if depth:
        return down(depth - 1, n) + 1
    until = time.monotonic() + 0.01
    done = 0
    while time.monotonic() < until:
        leaf(n + done)
        done += 1
    return done


end = time.monotonic() + float(sys.argv[1])
work = 0
while time.monotonic() < end:
    work += down(DEPTH, work) - DEPTH
print(json.dumps({"work": work}))
