"""Recursion as deep as the first argument says; the innermost function runs."""

import sys
import time

DEPTH = int(sys.argv[1])
sys.setrecursionlimit(DEPTH + 1000)


def leaf():
    print("ready", flush=True)
    end = time.time() + 120
    while time.time() < end:
        sum(range(200))


def down(left):
    if left:
        down(left - 1)
    else:
        leaf()


def main():
    down(DEPTH)


main()
