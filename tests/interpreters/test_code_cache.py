"""Tests of functions with known names: a stop reads little of them, and replaced code loses its name."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from pyprof.collectors.linux.libc import memory_reader
from pyprof.interpreters.cpython.object_reader import Memory, make_gather
from pyprof.interpreters.function_table import UNKNOWN
from pyprof.model.interpreter_reader_protocols import Span
from tests.interpreters.test_process import EMPTY, Reader, said, started

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

NESTED = """
import sys
def inner():
    print("ready", flush=True)
    sys.stdin.readline()
def middle():
    inner()
def outer():
    middle()
outer()
"""


@contextmanager
def asleep_in_python() -> Iterator[Reader]:
    with started(sys.executable, "-c", NESTED) as process:
        assert said(process) == "ready\n"
        reader = Reader(process.pid)
        assert [name for name in reader.names() if name != "<shim>"][:4] == ["inner", "middle", "outer", "<module>"]
        yield reader


def test_equal_chains_are_one_and_a_stop_does_not_read_known_code() -> None:
    with asleep_in_python() as reader:
        gather = make_gather(Memory(memory_reader(reader.pid, lambda: True)))
        asked: list[int] = []

        def counting(spans: Sequence[Span]) -> memoryview:
            asked[-1] += len(spans)
            return gather(spans)

        chains = []
        for _ in range(4):
            asked.append(0)
            reader.process.copy(reader.pid, EMPTY, 0, counting)
            asked.append(0)  # counts reads after the thread has resumed
            chains.append(reader.process.take_chain())
        in_stop, after = asked[::2], asked[1::2]
        first, *_, last = chains
        assert first is not None
        assert last is not None
        functions = {place.function for run in last.runs for place in run.frames}
        assert len(functions) > 1
        assert in_stop[0] - in_stop[-1] >= len(functions)
        assert after[-1] >= len(functions)
        assert last.number
        assert last is chains[-2]
        assert (first.runs, first.state) == (last.runs, last.state)


def test_code_that_is_replaced_between_the_stop_and_a_look_at_it_has_no_name_then() -> None:
    with asleep_in_python() as reader:
        names = reader.sample()
        assert reader.sample() == names
        frames, runtime = reader.process.frames, reader.process.runtime
        assert frames is not None
        assert runtime is not None
        heads = frames._settled.heads
        address = next(iter(heads))
        reader.process.copy(reader.pid, EMPTY, 0, make_gather(Memory(memory_reader(reader.pid, lambda: True))))
        with open(f"/proc/{reader.pid}/mem", "r+b", buffering=0) as memory:  # changes the first line number
            memory.seek(address + runtime.layout.code.firstlineno)
            memory.write(struct.pack("<i", 77))
        found = reader.taken()
        gone = reader.book.code(UNKNOWN).line(0).function
        assert [name for name, before in zip(found, names, strict=True) if name != before] == [gone]
        assert reader.sample() == names
        assert address not in heads
