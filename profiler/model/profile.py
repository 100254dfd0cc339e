"""A finished profile: everything that an exporter needs, and nothing that it could change.

Stacks are a prefix tree over frames (parents first, node 0 is no frame), samples are columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyprof.model.markers import Mark
from pyprof.model.modules import base_name
from pyprof.model.summary import Summary
from pyprof.model.walk import Trust


class FrameKind(IntEnum):
    NATIVE = 0
    INLINE = 1
    INTERPRETER = 2
    KERNEL = 3
    MARKER = 4  # no code: says that the stack is cut off here


@dataclass(frozen=True, slots=True)
class Line:
    """One function at one address. function: demangled; system_name: as the symbol table has it, "" of a function that
    has no name but a known start ("libcrypto.so.3!0x1a2b40").

    file: None where not known; line: 0 where not known. offset: bytes from the function's start.
    """

    function: str
    system_name: str
    offset: int = 0
    file: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """One address and its names.

    pc: avma as found on the stack, of an interpreter's or the kernel's frame its word, of a marker 0; lookup: avma
    looked up (pc, or pc - 1 of a return address); rel: pc minus the base of its module. module: index into
    Profile.modules, -1 if none. lines: innermost inline function first, () if no name is known. title: what to show for
    the whole frame: function, "module!0xstart", "module+0xrel", or a marker's text. mark: what a marker says.
    """

    kind: FrameKind
    pc: int
    lookup: int
    rel: int
    module: int
    lines: tuple[Line, ...]
    trust: Trust
    title: str
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module as the profile names it. start, end, offset: avma span of its executable mapping and its file offset.

    build_id: lower-case hex, "" if none. has_functions, has_lines: at least one frame got a name, a line.
    """

    path: str
    build_id: str
    start: int
    end: int
    offset: int
    has_functions: bool
    has_lines: bool

    @property
    def name(self) -> str:
        return base_name(self.path)


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """process: name of the thread's process."""

    pid: int
    tid: int
    name: str
    process: str


@dataclass(frozen=True, slots=True)
class ValueType:
    """type and unit as in pprof: ("samples", "count"), ("cpu", "nanoseconds")."""

    type: str
    unit: str


@dataclass(frozen=True)
class Profile:
    """n samples over t threads.

    parent, frame: (nodes,) int32, the prefix tree; frame[0] is -1. time_ns: (n,) int64 since the epoch; stack: (n,)
    int32 node of the leaf; thread: (n,) int32 index into threads; values: (n, len(value_types)) int64, the
    primary value last. Samples of one thread are in time order. start_ns: since the epoch. state: (n,) int32
    SampleState; cpu: (n,) int32, the processor, -1 where nobody said; None: known of no sample.
    """

    value_types: tuple[ValueType, ...]
    period_ns: int
    start_ns: int
    duration_ns: int
    title: str
    frames: tuple[Frame, ...]
    parent: npt.NDArray[np.int32]
    frame: npt.NDArray[np.int32]
    modules: tuple[ModuleInfo, ...]
    threads: tuple[ThreadInfo, ...]
    time_ns: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]
    summary: Summary
    state: npt.NDArray[np.int32] | None = None
    cpu: npt.NDArray[np.int32] | None = None

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The pids, ascending."""
        return tuple(sorted({thread.pid for thread in self.threads}))

    def path(self, node: int) -> list[Frame]:
        """Frames from the outermost to the leaf."""
        frames = []
        while node > 0:
            frames.append(self.frames[self.frame[node]])
            node = int(self.parent[node])
        return frames[::-1]

    def totals(self) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
        """(thread index, leaf node, summed values) of each distinct pair, in a stable order."""
        if not len(self.stack):
            return
        order = np.lexsort((self.stack, self.thread))
        thread, stack = self.thread[order], self.stack[order]
        first = np.flatnonzero(np.append(True, (thread[1:] != thread[:-1]) | (stack[1:] != stack[:-1])))
        sums = np.add.reduceat(self.values[order], first, axis=0)
        yield from zip(thread[first].tolist(), stack[first].tolist(), sums, strict=True)
