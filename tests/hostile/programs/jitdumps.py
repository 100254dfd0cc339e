"""jitdump.py FOLDER: a program with several files of machine code made at run time, each of which lies."""

import mmap
import os
import struct
import sys
import time
from pathlib import Path


def header(size=40):
    return struct.pack("<IIIIIIQQ", 0x4A695444, 1, size, 62, 0, os.getpid(), 1, 0)


def record(kind, size, body=b""):
    return struct.pack("<IIQ", kind, size, 1) + body


def load(start, size, index, name):
    return struct.pack("<IIQQQQ", os.getpid(), os.getpid(), start, start, size, index) + name


LIES = [
    header() + record(0, 0) * 1000,
    header() + record(0, 2**32 - 1, b"x" * 100),
    header() + b"".join(record(0, 66, load(2**64 - 8, 2**63, at, b"f\0" + b"\x90" * 8)) for at in range(100_000)),
    header() + record(0, 56 + (1 << 24), load(4096, 8, 1, b"A" * (1 << 24))),
    header() + record(2, 96, struct.pack("<QQ", 4096, 2**63) + b"\xff" * 64) * 50_000,
    header(2**32 - 16),
]
maps = []
for number, data in enumerate(LIES):
    path = Path(sys.argv[1]) / str(number) / f"jit-{os.getpid()}.dump"
    path.parent.mkdir()
    path.write_bytes(data.ljust(4096, b"\0"))
    with path.open("rb") as file:
        maps.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    sum(range(1000))
