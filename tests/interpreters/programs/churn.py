"""Functions that are made and freed, threads that live for milliseconds, garbage, forked children; runs until killed.

Function f_N of the file "file_N.py" begins in line N: a frame that mixes two of them is found out. usage: churn.py
[fork].
"""

import gc
import os
import sys
import threading
import time

SOURCE = "def f_{0}(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"


def made(number):
    """A new function each time; the one before is freed, and its memory used again."""
    code = compile("\n" * (number - 1) + SOURCE.format(number), f"/nowhere/file_{number}.py", "exec")
    names = {}
    exec(code, names)
    return names[f"f_{number}"]


def short(number):
    made(number)(2000)


def main():
    number = 0
    print("ready", flush=True)
    while True:
        number = number % 997 + 1
        made(number)(3000)
        thread = threading.Thread(target=short, args=(number,), name=f"short {number}")
        thread.start()
        if number % 50 == 0:
            gc.collect()
        if sys.argv[1:] == ["fork"] and number % 10 == 0:
            child = os.fork()
            if child == 0:
                end = time.time() + 0.05
                while time.time() < end:
                    made(number)(3000)
                os._exit(0)
            os.waitpid(child, 0)
        thread.join()


if __name__ == "__main__":
    main()
