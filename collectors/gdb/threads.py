"""The threads of a stub's target: their list, names, states, and the sizes of their stacks."""

from __future__ import annotations

import time

from pyprof.collectors.gdb.stub import MAX_THREADS, Stub, ThreadId, parse_xml
from pyprof.collectors.linux.procfs import parse_stat
from pyprof.errors import FormatError, RemoteError
from pyprof.records import dataclass

RED_ZONE = 128
_MAX_AT_FIRST = 64 << 10
_SLACK = 256
_GROWTH = 4096
_LIST_S = 0.2


@dataclass(slots=True)
class StackReach:
    """The amount of a thread's stack to copy: up to the highest address that a walk has used.

    Attributes:
        most: Maximum copy in bytes (--stack-size).
        first: Bytes of the first copy if the end of the stack is unknown.
        top: Highest address that a walk has used.
        limit: End of readable memory, after a copy that was too short.
    """

    most: int
    first: int
    top: int = 0
    limit: int = 0

    def choose_span(self, sp: int, end: int) -> tuple[int, int]:
        """Return (avma, size) of the stack copy to make; `end` is the end of the memory around sp, 0 if unknown."""
        base = max(sp - RED_ZONE, 0) & ~7
        if base < self.top <= base + self.most:
            size = min(self.top + _SLACK - base, self.most)
        else:
            size = min(max(self.first, min(end - base, _MAX_AT_FIRST)), self.most)
        if base < self.limit <= base + self.most:
            size = min(size, self.limit - base)
        return base, size

    def note_readable(self, base: int, size: int, wanted: int) -> None:
        """Note that `size` of the `wanted` bytes of a stack were readable."""
        if size < wanted:
            self.limit = base + size

    def learn(self, base: int, top: int, missing: int) -> None:
        """Learn how much stack a walk of the copy at `base` needed; see Feedback."""
        known = self.top if base < self.top <= base + self.most else 0  # 0: a value of another stack
        if base <= missing <= base + self.most:
            self.top = max(known, missing + max(_GROWTH, missing - base))
        elif base < top <= base + self.most:
            self.top = max(known, top)


@dataclass(slots=True)
class RemoteThread:
    """The state of a thread of a GDB stub's target.

    Attributes:
        id: The thread's id.
        reach: Amount of its stack to copy.
        name: The thread's name.
        state: Letter of its state.
        stat: Descriptor of /proc/PID/task/TID/stat in the stub, -1 if there is none.
        came_with: Clock ticks of processor time at the first reading.
        other: (avma, size) of other memory that the last walk lacked: the stack that a signal handler on an alternate
            stack interrupted.
        has_stored_name: True if its name is stored.
    """

    id: ThreadId
    reach: StackReach
    name: str = ""
    state: str = ""
    stat: int = -1
    came_with: int | None = None
    is_busy: bool = False
    """True if the thread runs and had processor time since it was first seen. A sleeping thread that a stop woke runs
    until it sleeps again.
    """
    other: tuple[int, int] = (0, 0)
    has_stored_name: bool = False


class RemoteThreads:
    """The list of threads of a GDB stub's target. It is read again from time to time, because threads may start without
    a report.
    """

    def __init__(self, stub: Stub, pid: int, stack_size: int, first: int) -> None:
        """Create an empty list of threads; `first` is the size of the first copy of a stack in bytes."""
        self._stub = stub
        self._pid = pid
        self._stack_size = stack_size
        self._first = first
        self._asked_ns = 0
        self._has_stat = True
        self.all: dict[str, RemoteThread] = {}

    def refresh(self, force: bool = False) -> None:
        """Read the list of threads from the GDB stub if it is due. The stub must accept requests.

        Raises:
            RemoteError: The stub's answers are not usable.
        """
        now = time.monotonic_ns()
        if not force and now - self._asked_ns < _LIST_S * 1e9:
            return
        self._asked_ns = now
        names = self._names() if self._stub.has_feature("qXfer:threads:read") else None
        if names is None:
            names = dict.fromkeys(self._stub.list_threads(), "")
        if not names:
            current = self._stub.read_current_thread() or ThreadId("1", 0, 1)
            names = {current: ""}
        kept: dict[str, RemoteThread] = {}
        for thread, name in names.items():
            if self._stub.multiprocess and thread.pid != self._pid:
                continue
            known = self.all.pop(thread.text, None) or RemoteThread(thread, StackReach(self._stack_size, self._first))
            known.name = name or known.name
            kept[thread.text] = known
        for gone in self.all.values():
            if gone.stat >= 0:
                self._stub.close_file(gone.stat)
        self.all = kept

    def _names(self) -> dict[ThreadId, str] | None:
        text = self._stub.read_object("threads")
        if text is None:
            return None
        found: dict[ThreadId, str] = {}

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "thread":
                if len(found) >= MAX_THREADS:
                    raise RemoteError("the stub's list of threads has no end")
                found[ThreadId.parse(attributes["id"])] = attributes.get("name", "")[:100]

        parse_xml("list of threads", text, start)
        return found

    def describe_states(self) -> bool:
        """Read the state of each thread of the GDB stub's target from its /proc, without a stop. Return False if that
        is not available.
        """
        if not self._has_stat or not self._pid:
            return False
        for thread in self.all.values():
            if thread.stat < 0:
                fd = self._stub.open_file(f"/proc/{self._pid}/task/{thread.id.tid}/stat")
                if fd is None:
                    self._has_stat = any(other.stat >= 0 for other in self.all.values())
                    thread.state = ""
                    continue
                thread.stat = fd
            try:
                stat = parse_stat(self._stub.read_file(thread.stat, 0, 512))
            except FormatError:
                thread.state = ""
                continue
            if thread.came_with is None:
                thread.came_with = stat.worked
            thread.state, thread.is_busy = stat.state, stat.state == "R" and stat.worked > thread.came_with
        return self._has_stat

    def note_ended(self, thread: ThreadId) -> None:
        self.all.pop(thread.text, None)
