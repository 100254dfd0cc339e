"""Tests of returning unused heap memory to the kernel, also from the malloc arenas of other threads."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import ctypes, json, threading, time
from pyprof.session.own_cpu_and_memory import OwnHeap

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


MAPPED = """
import ctypes, json, sys
from pyprof.collectors.linux.libc import map_large_blocks

malloc, free = ctypes.PyDLL(None).malloc, ctypes.PyDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)

def mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

if sys.argv[1] == "mapped":
    map_large_blocks(1 << 19)
free(malloc(30 << 20))
before, large, small = mb(), malloc(20 << 20), malloc(64 << 10)
ctypes.memset(large, 1, 20 << 20)
free(large)
print(json.dumps(mb() - before))
"""


def test_large_blocks_are_returned_at_once_only_if_they_are_mapped() -> None:
    def kept(word: str) -> float:
        found = subprocess.run([sys.executable, "-c", MAPPED, word], capture_output=True, text=True, check=True)
        return float(json.loads(found.stdout))

    assert kept("mapped") < 5  # MB
    assert kept("by default") > 15


def test_holes_go_back_to_the_kernel_and_seldom() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, first, full, soon, dropped = json.loads(found.stdout)
    assert before - first > 45  # MB: nine tenths of 2 * 500 * 64 KB are free
    assert full - first > 25
    assert abs(soon - full) < 5
    assert dropped == [1]
