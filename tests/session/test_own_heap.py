"""Tests of returning unused heap memory to the kernel, also from the malloc arenas of other threads."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import ctypes, json, threading, time
from pyprof.session.process_costs import OwnHeap

def mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

malloc, free = ctypes.PyDLL(None).malloc, ctypes.PyDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)

def holes():
    taken = [malloc(64 << 10) for _ in range(500)]
    for each in taken:
        ctypes.memset(each, 1, 64 << 10)
    for number, each in enumerate(taken):
        if number % 10:
            free(each)

holes()
thread = threading.Thread(target=holes)
thread.start()
thread.join()
heap, before, dropped = OwnHeap(), mb(), []
heap.trim(lambda: dropped.append(1))
first = mb()
holes()
full = mb()
heap.trim(lambda: dropped.append(2))
print(json.dumps([before, first, full, mb(), dropped]))
"""


def test_holes_go_back_to_the_kernel_and_seldom() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, first, full, soon, dropped = json.loads(found.stdout)
    assert before - first > 45  # MB: nine tenths of 2 * 500 * 64 KB are free
    assert full - first > 25
    assert abs(soon - full) < 5
    assert dropped == [1]
