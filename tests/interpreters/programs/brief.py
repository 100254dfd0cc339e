"""Threads that live for a millisecond, two at a time, each with a function that calls another one. The first line is
JSON as that of calls.py. Runs until its standard input ends, and says then how many threads there were and what their
functions took, of all processor time: {"threads": n, "function_s": s, "all_s": s}.
"""

import json
import select
import sys
import threading
import time

CALLS = {"main": ["<module>"], "brief": ["run"], "work": ["brief"], "leaf": ["work"]}
LIFE_S = 0.001
AT_ONCE = 2
spent = []


def leaf(n):
    total = 0
    for i in range(n):
        total += i * i
    return total


def work(until):
    while time.thread_time() < until:
        leaf(100)


def brief():
    began = time.thread_time()
    work(began + LIFE_S)
    spent.append(time.thread_time() - began)


def main():
    while not select.select([sys.stdin], [], [], 0)[0]:
        threads = []
        for _ in range(AT_ONCE):
            threads.append(threading.Thread(target=brief))
            threads[-1].start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    print(json.dumps(CALLS), flush=True)
    main()
    print(json.dumps({"threads": len(spent), "function_s": sum(spent), "all_s": time.process_time()}), flush=True)
