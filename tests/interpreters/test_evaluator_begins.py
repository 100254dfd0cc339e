"""Tests of CPython 3.11 and 3.12 evaluators during start-up, which takes several steps.

Outer functions keep their places. The tests hold the target at each of the evaluator's first instructions by replacing
it with a jump to itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from pyprof.model.arch.x86_instructions import LONGEST, instruction_length
from tests.collapsed import Stacks
from tests.interpreters.known_calls import impossible, read_callers
from tests.interpreters.pythons import Python, pythons, running
from tests.interpreters.runs import count, record, stacks
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

JUMP_TO_ITSELF = b"\xeb\xfe"
BEGINNING = 0xB0
"""Number of bytes of the evaluator's code that link its frame into the chain."""
EVALUATOR = "_PyEval_EvalFrameDefault"
LEAST = 1000
CHAINED = pytest.mark.parametrize("python", [p for p in pythons() if p.minor in (11, 12)], ids=lambda p: p.name)


def evaluator_of(pid: int) -> int:
    """Return the start address of the evaluator's code in a process."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    first = {line[5]: int(line[0].split("-")[0], 16) for line in lines[::-1] if len(line) == 6 and "python" in line[5]}
    for path, start in first.items():
        named = subprocess.run([need("nm"), "-D", path], capture_output=True, text=True, timeout=60, check=False).stdout
        for line in named.splitlines():
            if line.partition("@")[0].endswith(f" T {EVALUATOR}"):
                moves = Path(path).read_bytes()[16] == 3  # ET_DYN is position-independent
                return int(line.split()[0], 16) + moves * start
    raise AssertionError(f"no {EVALUATOR}")


def write_while_stopped(pid: int, memory: int, place: int, code: bytes) -> None:
    """Write code while the process is stopped. A running processor may see a partial write."""
    os.kill(pid, signal.SIGSTOP)
    while state_of(pid) not in "TXZ":
        time.sleep(0.001)
    os.pwrite(memory, code, place)
    os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def held_at_each(pid: int) -> Iterator[set[int]]:
    """Hold the process for 50 ms at each of the evaluator's first instructions, and yield the set of their offsets."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    start = evaluator_of(pid)
    code = os.pread(memory, BEGINNING + LONGEST, start)
    places, at = [], 0
    while at < BEGINNING:
        length = instruction_length(code, at, True)
        if length >= len(JUMP_TO_ITSELF):  # a longer jump would overwrite an instruction at which the thread may be
            places.append(start + at)
        at += length
    over, held = threading.Event(), set[int]()

    def hold() -> None:
        for place in cycle(places):
            if over.is_set():
                return
            before = os.pread(memory, len(JUMP_TO_ITSELF), place)
            write_while_stopped(pid, memory, place, JUMP_TO_ITSELF)
            held.add(place - start)
            over.wait(0.05)
            write_while_stopped(pid, memory, place, before)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield held
    finally:
        over.set()
        holder.join()
        os.close(memory)


@CHAINED
def test_evaluator_that_begins_leaves_the_functions_outside_it_in_their_places(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"

    def enough(found: Stacks) -> bool:
        return count(found) > LEAST

    with running(python, "calls.py") as process:
        callers = read_callers(process.stdout)
        with held_at_each(process.pid) as held:
            summary = record(process.pid, output, "--native", "all", "--collector", "bpf", until=enough)
        assert process.poll() is None
    found = stacks(output)
    assert enough(found)
    assert len(held) > 20
    outside = [frames for frames, _ in found if frames[-1] == EVALUATOR]
    assert outside
    for frames, _ in found:
        assert not impossible(frames, "calls.py", callers), frames
    partial = sum(n for frames, n in found if frames[0].startswith("[merge"))
    assert partial == 0, summary["errors"]
