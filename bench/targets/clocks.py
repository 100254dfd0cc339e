"""A Python thread that works and one that naps, which record their own processor time and waits until the process is
killed.

`python3 clocks.py FILE` writes the rows that clocks.c describes.
"""

import json
import mmap
import struct
import sys
import threading
import time

MAX_ROWS = 1 << 20
ROW = struct.Struct("<4q")
NAP_S = 0.02
used = 0
lock = threading.Lock()


def write_row(kind, a, b):
    global used
    with lock:
        at, used = used, used + 1
    if at < MAX_ROWS:
        ROW.pack_into(rows, at * ROW.size, kind, threading.get_native_id(), a, b)


def parse():
    return json.loads('[{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]' * 1)


def render(seed):
    return sum(seed * each for each in range(40))


def work():
    for seed in range(100):
        parse()
        render(seed)
    write_row(1, time.time_ns(), time.thread_time_ns())


def nap_again_and_again():
    while True:
        work()
        begin = time.time_ns()
        time.sleep(NAP_S)
        write_row(2, begin, time.time_ns())


with open(sys.argv[1], "w+b") as file:
    file.truncate(MAX_ROWS * ROW.size)
    rows = mmap.mmap(file.fileno(), 0)
threading.Thread(target=nap_again_and_again, daemon=True).start()
while True:
    work()
