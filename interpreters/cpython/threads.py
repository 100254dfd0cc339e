"""Thread states of one CPython by the kernel's tid, and the names that Python gave to threads.

Names come from threading._active, a dict with idents as keys and Thread objects as values. They are read between
samples, while the process runs. If a dict changes meanwhile, a name may be missing. A name belongs to an ident
(pthread_t). Callers compare it, because the kernel's tid may be reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from pyprof.interpreters.cpython.object_reader import Memory, Objects, Unreadable
from pyprof.interpreters.cpython.runtime_validation import PyThread, Runtime, read_tid
from pyprof.interpreters.cpython.thread_snapshot import ReadHints
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.interpreter_reader_protocols import Gather

_LONGEST = 256


class PythonThreadNames:
    """A reader of the names that Python code gave to the threads of one process."""

    def __init__(self, runtime: Runtime, memory: Memory, keys: dict[str, int]) -> None:
        """Create a reader of the names that Python code gave to its threads.

        Args:
            keys: Last known address, by text, of each str that is looked up as a key of a dict. All readers of a
                recording share it, because a forked child has the str at the same address. Without it, the names of all
                modules must be compared, which takes 4 ms for a new process.
        """
        self._runtime = runtime
        self._memory = memory
        self._keys = keys
        self._objects = Objects(memory, runtime.layout.object, runtime.layout.minor)
        self._active: dict[int, int] = {}
        self._without: dict[int, bytes] = {}
        """State of sys.modules when it did not contain the module threading, by interpreter."""

    def read_names(self) -> dict[int, str]:
        """Return {ident: name} of the Python threads (PyThread.ident), as far as the names can be read."""
        names: dict[int, str] = {}
        try:
            for interpreter, _ in self._runtime.read_interpreters(self._memory):
                self._read(interpreter, names)
        except Unreadable:
            pass
        return names

    def _read(self, interpreter: int, names: dict[int, str]) -> None:
        active = self._active.get(interpreter) or self._find_active(interpreter)
        if not active:
            return
        self._active[interpreter] = active
        for key, thread in self._objects.dict_items(active):
            try:
                ident = self._objects.read_int(key)
                name = self._attribute(thread, "_name")
                if name:
                    names[ident] = self._objects.read_str(name, _LONGEST)
            except Unreadable:
                continue

    def _find_active(self, interpreter: int) -> int:
        """Return the address of the dict threading._active, 0 if the process has not imported threading."""
        layout = self._runtime.layout
        modules = self._memory.read_u64(interpreter + layout.interpreter.modules)
        if not modules:
            return 0
        state = self._objects.dict_state(modules)
        if self._without.get(interpreter) == state:
            return 0
        module = self._item(modules, "threading")
        if not module:
            self._without[interpreter] = state
            return 0
        attributes = self._memory.read_u64(module + layout.object.type + 8)
        return self._item(attributes, "_active") if attributes else 0

    def _item(self, mapping: int, name: str) -> int:
        return self._named(self._objects.dict_items(mapping), name)

    def _attribute(self, instance: int, name: str) -> int:
        return self._named(self._objects.attributes(instance), name)

    def _named(self, items: Iterator[tuple[int, int]], name: str) -> int:
        """Find a key in the items of a Python dict, and return the address of its value, 0 if the dict lacks it."""
        likely = self._keys.get(name)
        for key, value in sorted(items, key=lambda item: item[0] != likely):
            if self._is(key, name):
                self._keys[name] = key
                return value
        return 0

    def _is(self, key: int, name: str) -> bool:
        """Return True if the Python str at an address has the given text."""
        try:
            length = self._memory.read_u64(key + self._objects.layout.text_length)
            return length == len(name) and self._objects.read_str(key) == name
        except Unreadable:
            return False


_RELIST_NS = 50_000_000
_RELIST_BUDGET = 50
"""Factor that limits the listing of Python threads: a listing that used t nanoseconds of processor time is followed by
a pause of 50 t.
"""
_NAMES_NS, _NAMES_LATE_NS, _NAMES_SOON_NS, _NAMES_BUDGET = 1_000_000_000, 64_000_000_000, 20_000_000, 200
"""Schedule for reading the names of Python threads, in nanoseconds. _NAMES_NS is the first interval, which doubles up
to _NAMES_LATE_NS while no name changes. _NAMES_SOON_NS is the interval after a new thread. The reader waits at least
_NAMES_BUDGET times as long as the last read took.
"""
_MAX_NAMES = 1 << 14
_MAX_HOLDERS = 4
"""Maximum number of GILs of which a stop reads the thread state that holds it."""
_NEWCOMER_TRIES = 8
"""Number of attempts to find the Python thread state of a new thread, which may not have one at once."""
_RELIST_MISSES = 64
"""Number of samples of a thread without a Python thread state after which it probably has none."""


@dataclass(slots=True)
class KnownThread:
    """The Python thread states of one kernel thread. There are several if the thread runs several interpreters."""

    states: list[tuple[PyThread, ReadHints]] = field(default_factory=list)


class ThreadList:
    """The Python thread states of one runtime.

    Attributes:
        known: Thread states by tid.
        wanted: True if all threads must be listed again.
    """

    def __init__(
        self,
        runtime: Runtime,
        memory: Memory,
        namespace_tid: Callable[[int], int],
        prepare: Callable[[list[tuple[PyThread, ReadHints]]], None],
    ) -> None:
        """Create an empty list of the Python thread states of one runtime.

        Args:
            namespace_tid: Translates a tid to the process's own pid namespace.
            prepare: Function that is called with new thread states before their first sample.
        """
        self.known: dict[int, KnownThread] = {}
        self.wanted = True
        self._runtime = runtime
        self._memory = memory
        self._namespace_tid = namespace_tid
        self._prepare = prepare
        self._inner: dict[int, int] = {}
        self._listed: dict[int, PyThread] = {}
        self._newcomers: dict[int, int] = {}
        self._misses: dict[int, int] = {}
        self._holders: dict[int, PyThread] = {}
        self._relist_at = 0

    def find_threads(self, tids: Collection[int]) -> bool:
        """Find the Python thread states of new threads. List the thread states of all threads if necessary, and then
        return True.

        New threads are found without delay, because many end soon.
        """
        if self._relist_at:
            self._welcome(tids)
        if not self.wanted or time.monotonic_ns() < self._relist_at:
            return False
        before = time.thread_time_ns()
        self._inner = {tid: self._inner.get(tid) or self._namespace_tid(tid) for tid in tids}
        self.known = {tid: known for tid, known in self.known.items() if tid in self._inner}
        self._misses = {tid: misses for tid, misses in self._misses.items() if tid in self._inner}
        self._list()
        spent = time.thread_time_ns() - before
        self._relist_at = time.monotonic_ns() + max(_RELIST_NS, _RELIST_BUDGET * spent)
        return True

    def _list(self) -> None:
        self.wanted = False
        self._listed = {}
        by_namespace = {inner: tid for tid, inner in self._inner.items()}
        found: dict[int, list[PyThread]] = {}
        try:
            for thread in self._runtime.read_threads(self._memory, by_namespace.__contains__):
                if thread.tid in by_namespace:
                    found.setdefault(by_namespace[thread.tid], []).append(thread)
        except Unreadable:
            self.wanted = True
        holders = {thread.gil: thread for states in found.values() for thread in states if thread.gil}
        self._holders = dict([*holders.items()][:_MAX_HOLDERS])
        self._know(found)

    def forget_thread(self, tid: int) -> None:
        """Forget the Python thread states of a thread that has ended; the next thread with this tid is a new one."""
        for table in (self.known, self._inner, self._newcomers, self._misses):
            table.pop(tid, None)

    def find_thread(self, tid: int, gather: Gather) -> KnownThread | None:
        """Return the Python thread states that belong to the sample of a kernel thread.

        If the thread is not listed, it may be the one that holds the GIL. Then `gather` reads which thread state holds
        it.
        """
        known = self.known.get(tid)
        return known if known is not None and known.states else self._guess(tid, gather)

    def _welcome(self, tids: Collection[int]) -> None:
        for tid in tids:
            if tid not in self._inner:
                self._inner[tid] = self._namespace_tid(tid)
                self._newcomers[tid] = _NEWCOMER_TRIES
        self.wanted = self.wanted or len(self._inner) > 2 * len(tids) + _RELIST_MISSES
        if not self._newcomers:
            return
        by_namespace = {inner: tid for tid, inner in self._inner.items()}
        listed = self._listed
        found: dict[int, list[PyThread]] = {}
        try:
            for thread in self._runtime.read_threads(
                self._memory, by_namespace.__contains__, lambda thread: listed.get(thread.address) == thread
            ):
                if by_namespace.get(thread.tid) in self._newcomers:
                    found.setdefault(by_namespace[thread.tid], []).append(thread)
        except Unreadable:
            self.wanted = True
        self._know(found)
        self._newcomers = {
            tid: tries - 1 for tid, tries in self._newcomers.items() if tries > 1 and tid in tids and tid not in found
        }

    def _know(self, found: dict[int, list[PyThread]]) -> None:
        """Store newly found Python thread states by tid, and prepare the first sample of each."""
        unread: list[tuple[PyThread, ReadHints]] = []
        for tid, states in found.items():
            known = self.known.setdefault(tid, KnownThread())
            habits = {thread.address: habit for thread, habit in known.states}
            known.states = [(thread, habits.get(thread.address) or ReadHints()) for thread in states]
            self._listed.update((thread.address, thread) for thread in states)
            unread += [state for state in known.states if state[0].address not in habits]
        self._prepare(unread)

    def _guess(self, tid: int, gather: Gather) -> KnownThread | None:
        misses = self._misses[tid] = self._misses.get(tid, 0) + 1
        self.wanted = self.wanted or misses < _RELIST_MISSES or misses % _RELIST_MISSES == 0
        wanted = self._inner.get(tid)
        if not wanted:
            return None
        memory = Memory(lambda avma, size: bytes(gather([(avma, size)])))
        layout = self._runtime.layout
        for gil, sibling in self._holders.items():
            try:
                at = memory.read_u64(gil + layout.gil_holder)
                if not at or memory.read_u64(at + layout.thread.interp) != sibling.interpreter:
                    continue
                ident = memory.read_u64(at + layout.thread.thread_id)
                native = layout.thread.native_id
                own = memory.read_u64(at + native) if native >= 0 else read_tid(memory, ident, wanted.__eq__)
            except Unreadable:
                continue
            if own == wanted:
                thread = PyThread(
                    at, wanted, ident, sibling.interpreter, sibling.interpreter_id, gil, sibling.collecting
                )
                known = self.known[tid] = KnownThread([(thread, ReadHints())])
                return known
        return None


class ThreadNameTable:
    """Names that Python gave to threads, by tid. The name of an ended thread stays."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._source: PythonThreadNames | None = None
        self._read_at = 0
        self._wait_ns = _NAMES_NS

    def read_from(self, source: PythonThreadNames) -> None:
        self._source = source

    def read_if_due(self, threads: ThreadList) -> None:
        """Read the names of Python threads if the interval since the last read has passed and the list has threads."""
        if threads.known and time.monotonic_ns() >= self._read_at:
            before, cpu_before = dict(self.names), time.thread_time_ns()
            self.read_names(threads)
            self._wait_ns = min(2 * self._wait_ns, _NAMES_LATE_NS) if self.names == before else _NAMES_NS
            spent = time.thread_time_ns() - cpu_before
            self._read_at = time.monotonic_ns() + max(self._wait_ns, _NAMES_BUDGET * spent)

    def hasten_read(self, tids: Collection[int]) -> None:
        """Make the next regular read of Python's thread names early, because threads have appeared or ended."""
        self._read_at, self._wait_ns = min(self._read_at, time.monotonic_ns() + _NAMES_SOON_NS), _NAMES_NS
        if len(self.names) > _MAX_NAMES:
            self.names = {tid: name for tid, name in self.names.items() if tid in tids}

    def read_names(self, threads: ThreadList) -> None:
        """Read the current names of Python threads."""
        names = self._source.read_names() if self._source is not None else {}
        for tid, known in threads.known.items():
            for thread, _ in known.states:
                name = names.get(thread.ident)
                if name:
                    self.names[tid] = name
