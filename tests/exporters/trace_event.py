"""A strict reader of the Trace Event Format, which accepts only what its document allows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Thread = tuple[int, int]
"""(pid, tid) of a thread."""


@dataclass(frozen=True)
class Slice:
    """A slice of a thread.

    Attributes:
        begin: Start in nanoseconds.
        end: End in nanoseconds.
        stack: Names from the outermost enclosing slice to this one.
    """

    begin: int
    end: int
    stack: tuple[str, ...]
    args: dict[str, str]


@dataclass
class Trace:
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[Thread, str] = field(default_factory=dict)
    slices: dict[Thread, list[Slice]] = field(default_factory=dict)
    samples: list[tuple[Thread, int, tuple[str, ...], int, int | None]] = field(default_factory=list)
    """(thread, time in nanoseconds, names from root to leaf, weight, processor) of each sample."""

    def stack_at(self, thread: Thread, ns: int) -> tuple[str, ...]:
        """Return the stack that is drawn at a time, which is that of the deepest slice."""
        return max((s.stack for s in self.slices.get(thread, ()) if s.begin <= ns < s.end), key=len, default=())


def read(data: bytes) -> Trace:
    document = json.loads(data)
    assert document.keys() == {"displayTimeUnit", "otherData", "traceEvents", "stackFrames", "samples"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    trace = Trace()
    for event in document["traceEvents"]:
        thread = _thread(event)
        if event["ph"] == "M":
            assert event.keys() == {"ph", "name", "pid", "tid", "args"}
            (name,) = event["args"].values()
            assert isinstance(name, str)
            if event["name"] == "process_name":
                trace.processes[thread[0]] = name
            else:
                assert event["name"] == "thread_name"
                trace.threads[thread] = name
        else:
            assert event["ph"] == "X"
            assert event.keys() - {"args"} == {"ph", "name", "cat", "pid", "tid", "ts", "dur"}
            _add(trace.slices.setdefault(thread, []), event)
    stacks = _stacks(document["stackFrames"])
    for sample in document["samples"]:
        assert sample.keys() - {"cpu"} == {"name", "pid", "tid", "ts", "sf", "weight"}
        cpu = sample.get("cpu")
        assert cpu is None or cpu >= 0
        trace.samples.append((_thread(sample), _ns(sample["ts"]), stacks[sample["sf"]], sample["weight"], cpu))
    return trace


def _thread(event: dict[str, Any]) -> Thread:
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    return event["pid"], event["tid"]


def _ns(microseconds: float) -> int:
    assert microseconds >= 0
    return round(microseconds * 1000)


def _add(slices: list[Slice], event: dict[str, Any]) -> None:
    """Add a slice to a thread, within the last open slice or after it."""
    begin = _ns(event["ts"])
    end = begin + _ns(event["dur"])
    stack: tuple[str, ...] = ()
    if slices:
        assert begin >= slices[-1].begin, "not in the order of their beginning"
    for outer in reversed(slices):
        if begin < outer.end:
            assert end <= outer.end, "slices overlap"
            stack = outer.stack
            break
    slices.append(Slice(begin, end, (*stack, event["name"]), event.get("args", {})))


def _stacks(frames: dict[str, dict[str, Any]]) -> dict[int, tuple[str, ...]]:
    stacks: dict[int, tuple[str, ...]] = {}
    for number, frame in frames.items():
        assert frame.keys() - {"parent"} == {"name", "category"}
        outer = stacks[frame["parent"]] if "parent" in frame else ()
        stacks[int(number)] = (*outer, frame["name"])
    return stacks
