"""A CPython runtime that was checked against the live process: layout, interpreters, threads.

The input is a Located and the process's memory. The output is a Runtime. A version that is not known, or a layout that
the process contradicts, raises UnreadRuntime with one sentence. A runtime that has not started is None; the caller
tries again later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pyprof.errors import FormatError
from pyprof.interpreters.cpython import debug_offsets
from pyprof.interpreters.cpython.layout import LAYOUTS, NONE, Layout
from pyprof.interpreters.cpython.object_reader import Memory, Unreadable
from pyprof.interpreters.cpython.runtime_location import Located
from pyprof.lazy_dataclasses import dataclass

MAX_INTERPRETERS = 1024
MAX_THREADS = 1 << 14
"""Maximum number of Python thread states in all interpreters of a process together."""
_READS = 5
PTHREAD_TID = {"x86_64": (0x2D0, 0x30), "aarch64": (0xD0, 0x20)}.get(os.uname().machine, (0x2D0, 0x30))
"""Offsets of a thread's kernel tid in its struct pthread on this machine: glibc, musl."""


class UnreadRuntime(Exception):
    """A CPython runtime whose frames are not read; the message is one sentence that says why."""


class UnsettledRuntime(UnreadRuntime):
    """The CPython runtime is in a state that also occurs shortly after a fork. A later attempt to read
    it may succeed.
    """


@dataclass(frozen=True, slots=True)
class PyThread:
    """A thread state of CPython. Addresses are avmas.

    Attributes:
        address: Address of the PyThreadState.
        tid: The kernel's tid in the process's own pid namespace, 0 if it was not found.
        ident: threading.get_ident(), the pthread_t.
        interpreter: Address of the thread's interpreter (PyInterpreterState).
        interpreter_id: Number of the thread's interpreter, 0 for the main one.
        gil: Address of the GIL that the thread needs, 0 if there is none.
        collecting: Address of the garbage collector's flag.
    """

    address: int
    tid: int
    ident: int
    interpreter: int
    interpreter_id: int
    gil: int
    collecting: int


@dataclass(frozen=True, slots=True)
class Runtime:
    """A CPython runtime in a process: its location, its layout, and the avma of _PyRuntime."""

    located: Located
    layout: Layout
    address: int

    def read_interpreters(self, memory: Memory) -> Iterator[tuple[int, int]]:
        """Yield (address, id) of each interpreter of the CPython runtime once.

        Raises:
            Unreadable: The list of interpreters cannot be read.
        """
        layout = self.layout.interpreter
        at = memory.read_u64(self.address + self.layout.runtime.interpreters_head)
        seen: set[int] = set()
        while at and at not in seen and len(seen) < MAX_INTERPRETERS:
            seen.add(at)
            yield at, memory.read_u64(at + layout.id)
            at = memory.read_u64(at + layout.next)

    def read_gil(self, memory: Memory, interpreter: int) -> int:
        if self.layout.runtime.gil != NONE:
            return self.address + self.layout.runtime.gil
        return memory.read_u64(interpreter + self.layout.interpreter.gil)

    def read_threads(
        self, memory: Memory, tasks: Callable[[int], bool], is_known: Callable[[PyThread], bool] = lambda thread: False
    ) -> Iterator[PyThread]:
        """Yield each Python thread state of the CPython runtime once.

        Args:
            tasks: Returns True for a tid of the process.
            is_known: Function of a thread. The list of an interpreter, newest thread first, is read up to the first
                thread for which it returns True.

        Raises:
            Unreadable: A list cannot be read.
        """
        layout = self.layout
        seen: set[int] = set()
        for interpreter, number in self.read_interpreters(memory):
            gil = self.read_gil(memory, interpreter)
            own = layout.interpreter.collecting != NONE
            collecting = (
                interpreter + layout.interpreter.collecting if own else self.address + layout.runtime.collecting
            )
            at = memory.read_u64(interpreter + layout.interpreter.threads_head)
            while at and at not in seen and len(seen) < MAX_THREADS:
                seen.add(at)
                head = memory.read_memory(at, layout.thread.size)
                ident = _word(head, layout.thread.thread_id)
                native = _word(head, layout.thread.native_id) if layout.thread.native_id != NONE else 0
                tid = native if native and tasks(native) else read_tid(memory, ident, tasks)
                thread = PyThread(at, tid, ident, interpreter, number, gil, collecting)
                if is_known(thread):
                    break
                yield thread
                at = _word(head, layout.thread.next)


def read_tid(memory: Memory, ident: int, tasks: Callable[[int], bool]) -> int:
    """Return the kernel's tid of a thread by its pthread_t, 0 if it is not where the known C libraries keep it."""
    for offset in PTHREAD_TID:
        try:
            tid = memory.read_u32(ident + offset)
        except Unreadable:
            continue
        if tasks(tid):
            return tid
    return 0


def open_runtime(located: Located, memory: Memory, tasks: Callable[[int], bool]) -> Runtime | None:
    """Check a CPython runtime against the process's memory and return it. Return None if the runtime has no interpreter
    yet or the process has ended.

    The process changes its lists while they are read. A contradiction therefore counts only if each of several attempts
    finds one.

    Raises:
        UnreadRuntime: The runtime cannot be read.
    """
    for _ in range(_READS - 1):
        try:
            return _opened(located, memory, tasks)
        except UnsettledRuntime:
            raise
        except UnreadRuntime:
            pass
    return _opened(located, memory, tasks)


def _opened(located: Located, memory: Memory, tasks: Callable[[int], bool]) -> Runtime | None:
    try:
        layout = _layout(located, memory)
        runtime = Runtime(located, layout, located.runtime)
        if not memory.read_u64(located.runtime + layout.runtime.interpreters_head):
            return None
        _check(runtime, memory, tasks)
    except Unreadable as error:
        if not _alive(memory, located):
            return None
        raise UnreadRuntime(f"CPython's runtime is not where its version has it ({error})") from None
    except FormatError as error:
        raise UnreadRuntime(f"CPython's table of its layout is not understood: {error.message}") from None
    return runtime


def _alive(memory: Memory, located: Located) -> bool:
    try:
        memory.read_u64(located.runtime)
    except Unreadable:
        return False
    return True


def _layout(located: Located, memory: Memory) -> Layout:
    head = memory.read_memory(located.runtime, debug_offsets.HEAD)
    if head[:8] == debug_offsets.COOKIE:
        minor = debug_offsets.minor_of(head)
        if minor not in debug_offsets.FIELDS:
            raise UnreadRuntime(f"CPython 3.{minor} is not known yet")
        layout = debug_offsets.read_layout(memory.read_memory(located.runtime, debug_offsets.table_size(minor)))
    else:
        minor = _minor(located, memory)
        if minor not in LAYOUTS:
            raise UnreadRuntime(f"CPython 3.{minor} is not known" if minor >= 0 else "a CPython of unknown version")
        layout = LAYOUTS[minor]
    if layout.runtime.size and located.size and layout.runtime.size != located.size:
        raise UnreadRuntime(f"CPython {layout.version} with an unknown layout: its runtime has {located.size} bytes")
    return layout


def _minor(located: Located, memory: Memory) -> int:
    """Return the minor version of a CPython runtime without _Py_DebugOffsets, -1 if it is not known."""
    if located.version:
        version = memory.read_u32(located.version)
        return version >> 16 & 0xFF if version >> 24 == 3 else -1
    sized = {layout.runtime.size: minor for minor, layout in LAYOUTS.items() if layout.runtime.size}
    return sized.get(located.size, located.minor)


def _check(runtime: Runtime, memory: Memory, tasks: Callable[[int], bool]) -> None:
    """Check that the process's memory agrees with the expected layout of its CPython.

    Raises:
        UnreadRuntime: The process contradicts the layout.
        Unreadable: Memory is missing.
    """
    layout, version = runtime.layout, runtime.layout.version
    for interpreter, number in runtime.read_interpreters(memory):
        if number >= 1 << 20:
            raise UnreadRuntime(f"CPython {version} with an unknown layout: an interpreter has the id {number:#x}")
        head = memory.read_u64(interpreter + layout.interpreter.threads_head)
        if head and memory.read_u64(head + layout.thread.interp) != interpreter:
            raise UnreadRuntime(f"CPython {version} with an unknown layout: a thread's interpreter is another one")
        gil = runtime.read_gil(memory, interpreter)
        if gil and memory.read_i32(gil + layout.gil_locked) not in (-1, 0, 1):
            raise UnreadRuntime(f"CPython {version} with an unknown layout: its GIL is neither free nor taken")
    found = list(runtime.read_threads(memory, tasks))
    if found and not any(thread.tid for thread in found):
        raise UnsettledRuntime(f"CPython {version} with an unknown layout: none of its threads is one of the process")


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
