"""Everything that comes and goes at once: 200 threads a second, each with a function of its own, made and freed by exec
and eval, garbage that is collected, children that are forked. The program keeps count of what it has computed.

usage: storm.py. Runs until its standard input ends. Output: "ready", at the end one JSON line {"threads": how many,
"lived_s": how long all of them together, from when their function began, "wrong": results that were not as expected}.

Function f_N of the file "file_N.py" begins in line N.
"""

import gc
import json
import os
import select
import sys
import threading
import time

SOURCE = (
    "def f_{0}(n):\n    total = 0\n    for i in range(n):\n        total += i\n    rest()\n    return total + {0}\n"
)
ROUNDS = 3000
EVERY_S = 1 / 200
LIFE_S = 0.02


def rest():
    time.sleep(LIFE_S)


def made(number):
    """A new function each time."""
    names = {"rest": rest}
    exec(compile("\n" * (number - 1) + SOURCE.format(number), f"/nowhere/file_{number}.py", "exec"), names)
    return names[f"f_{number}"]


class Count:
    def __init__(self):
        self.lock = threading.Lock()
        self.threads = self.wrong = 0
        self.lived_s = 0.0

    def short(self, number):
        begin = time.monotonic()
        total = made(number)(ROUNDS)
        total += eval(f"(lambda n: sum(i for i in range(n)))({number})", {})
        with self.lock:
            self.threads += 1
            self.wrong += total != sum(range(ROUNDS)) + number + sum(range(number))
            self.lived_s += time.monotonic() - begin


def fork():
    child = os.fork()
    if child == 0:
        made(1)(100)
        os._exit(0)
    return child


def main():
    count, number, children = Count(), 0, []
    print("ready", flush=True)
    following = time.monotonic()
    while not select.select([sys.stdin], [], [], max(following - time.monotonic(), 0))[0]:
        following = max(following + EVERY_S, time.monotonic() - 1)
        number = number % 997 + 1
        threading.Thread(target=count.short, args=(number,), name=f"short {number}").start()
        if number % 40 == 0:
            gc.collect()
        if number % 50 == 0:
            children.append(fork())
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    count.wrong += sum(os.waitpid(child, 0)[1] != 0 for child in children)
    print(json.dumps({"threads": count.threads, "lived_s": count.lived_s, "wrong": count.wrong}), flush=True)


if __name__ == "__main__":
    main()
