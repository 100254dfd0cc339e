"""Windows of a server with two threads, as a recording produces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyprof.model.profile import Frame, Profile, ThreadInfo
from tests.exporters.profiles import Builder, code

START, MAIN = code("_start", rel=0x10), code("main", rel=0x200, file="/src/server/main.c", line=42)
PARSE = code("parse", rel=0x300, file="/src/server/parse.c", line=7)
READ = code("read", module=0, rel=0x400)
THREADS = [ThreadInfo(100, 100, "main", "server"), ThreadInfo(100, 101, "worker", "server")]

Stacks = Mapping[tuple[int, Sequence[Frame]], int]
"""Number of samples, of 10 ms each, by (index of the thread, frames from root to leaf)."""


def window(stacks: Stacks, seconds: float = 1.0, threads: Sequence[ThreadInfo] = THREADS) -> Profile:
    made = Builder(threads=list(threads))
    for (thread, frames), count in stacks.items():
        leaf = made.node(frames)
        for _ in range(count):
            made.sample(leaf, thread)
    return made.build(duration_ns=round(seconds * 1e9))


BUSY: Stacks = {
    (0, (START, MAIN, PARSE)): 30,
    (0, (START, MAIN, PARSE, PARSE)): 20,
    (0, (START, MAIN)): 10,
    (1, (START, MAIN, READ)): 40,
}
