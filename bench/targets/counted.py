"""`python3 counted.py FILE INDEX`: run Python code and extension modules, until the process is killed.

The 64-bit number at INDEX in FILE counts the rounds that the program has done.
"""

import hashlib
import json
import mmap
import re
import struct
import sys
import zlib


def records(seed):
    return [{"id": (seed * 31 + i * 17) % 1009, "name": f"record {i}", "tags": ["a", "b", str(i)]} for i in range(20)]


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def packed(text):
    return hashlib.sha256(zlib.compress(text.encode())).hexdigest()


def one(seed):
    text = json.dumps(sorted(records(seed), key=lambda row: row["id"]))
    return len(re.findall(r"[a-z]+ \d+", text)), packed(text), fibonacci(9), len(json.loads(text))


with open(sys.argv[1], "r+b") as file:
    counts = mmap.mmap(file.fileno(), 4096)
at, done = 8 * int(sys.argv[2]), 0
while True:
    one(done)
    done += 1
    struct.pack_into("<Q", counts, at, done)
