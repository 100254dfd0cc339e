"""A pool of multiprocessing that computes, made anew each second. Usage: pool.py fork|spawn|forkserver."""

import multiprocessing
import os
import sys
import time


def crunch(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(n * n for n in range(500))
    return os.getpid()


def main():
    context = multiprocessing.get_context(sys.argv[1])
    print("ready", flush=True)
    while True:
        with context.Pool(2) as pool:
            pool.map(crunch, [0.4] * 4, chunksize=1)


if __name__ == "__main__":
    main()
