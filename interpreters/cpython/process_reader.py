"""CPython in one process as an interpreters.base.ProcessReader.

PythonProcess finds the runtime, lists threads, and reads frames. Its input is modules and tids from the collector, and
memory that was copied while a thread was stopped. Its output is a Chain of Python frames for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyprof.interpreters.base import InterpreterContext
from pyprof.interpreters.cpython.detection import CPythonFileCache, RuntimeFinder
from pyprof.interpreters.cpython.object_reader import make_gather
from pyprof.interpreters.cpython.runtime_validation import PyThread, Runtime
from pyprof.interpreters.cpython.threads import PythonThreadNames, ThreadList, ThreadNameTable
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import Chain, FunctionPlace
from pyprof.model.interpreter_reader_protocols import FrameReadPlan, Gather, KernelReader

if TYPE_CHECKING:  # the frame readers are imported once there is a runtime
    from pyprof.interpreters.cpython.asyncio_tasks import TaskLayout
    from pyprof.interpreters.cpython.bpf_frame_decoder import FrameRowReader
    from pyprof.interpreters.cpython.frame_reader import FrameReader


class PythonProcess:
    """A CPython process: its threads, the frames of its current runtime, and its asyncio tasks."""

    def __init__(
        self, recording: InterpreterContext, programs: CPythonFileCache, namespace_tid: Callable[[int], int]
    ) -> None:
        """Create a reader of one process's Python threads and frames.

        Args:
            programs: Cache of the place and layout of CPython in each file.
            namespace_tid: Translates a tid to the process's own pid namespace.
        """
        self._recording = recording
        self._programs = programs
        self._namespace_tid = namespace_tid
        self._finder = RuntimeFinder(programs, lambda why: recording.diagnostics.count(f"python_not_readable:{why}"))
        self._names = ThreadNameTable()
        self._opened: Runtime | None = None
        self._without_tasks_counted = False
        self.threads: ThreadList | None = None
        self.frames: FrameReader | None = None
        self.tasks: TaskLayout | None = None

    @property
    def runtime(self) -> Runtime | None:
        return self._finder.runtime

    @property
    def expected(self) -> Runtime | None:
        """The CPython runtime of the process. It is known before the runtime has started, or after the process has
        ended, if another process has run the same file.
        """
        return self._finder.runtime or self._finder.expected

    @property
    def refusal(self) -> str:
        """Reason why no Python frames are read, "" if they are read or there is no CPython."""
        return self._finder.refusal

    @property
    def module(self) -> str:
        return self.expected.located.module.path if self.expected is not None else ""

    @property
    def reads(self) -> bool:
        return self.frames is not None

    @property
    def lockless(self) -> bool:
        return self.runtime is not None and self.runtime.layout.free_threaded

    @property
    def names(self) -> dict[int, str]:
        return self._names.names

    @property
    def undecided(self) -> bool:
        """True if there is a CPython runtime that has not started or whose state is not consistent yet."""
        return self._finder.undecided

    @property
    def greenlets(self) -> bool:
        """True if the C stacks of the process's threads may hold frames of several greenlets."""
        return self._finder.greenlets

    def kernel_reader(self) -> KernelReader:
        from pyprof.interpreters.cpython.bpf_frame_decoder import PythonInKernel

        return PythonInKernel(self, self._recording.diagnostics)

    def row_reader(self, runtime: Runtime, parent: FrameRowReader | None) -> FrameRowReader:
        """Return a decoder for the frame rows that the BPF program copies of a runtime in this process."""
        from pyprof.interpreters.cpython.bpf_frame_decoder import FrameRowReader

        return FrameRowReader(runtime, self._finder.memory, self._recording.book, parent)

    @property
    def goroutines(self) -> None:
        """Return None, because Python has no goroutines."""

    def inspect_process(self, space: AddressSpace, tids: Collection[int]) -> None:
        finder = self._finder
        changed = finder.find_runtime(space, lambda: set(map(self._namespace_tid, tids)))
        runtime = finder.runtime
        if runtime is None:
            self._opened = self.threads = self.frames = self.tasks = None
            return
        if runtime is not self._opened:
            self._open(runtime)
        elif changed and self.threads is not None:
            self.threads.wanted = True
        if changed or runtime is not self._opened:
            self._names.read_from(PythonThreadNames(runtime, finder.memory, self._programs.keys))
            self._find_tasks(runtime, space)
        self._opened = runtime
        assert self.threads is not None
        self._names.read_if_due(self.threads)
        if self.threads.find_threads(tids):
            self._names.hasten_read(tids)

    def _open(self, runtime: Runtime) -> None:
        from pyprof.interpreters.cpython.frame_reader import FrameReader

        recording, memory = self._recording, self._finder.memory
        self.frames, self.tasks = FrameReader(runtime, memory, recording), None
        self.threads = ThreadList(runtime, memory, self._namespace_tid, self.frames.prepare)

    def _find_tasks(self, runtime: Runtime, space: AddressSpace) -> None:
        """Look for the asyncio module in the process, which may import it at any time."""
        frames, recording, layout = self.frames, self._recording, runtime.layout
        if not recording.follow_tasks or frames is None or frames.awaiters is not None:
            return
        from pyprof.interpreters.cpython.asyncio_tasks import Awaiters, find_tasks

        memory = self._finder.memory
        tasks = find_tasks(space, recording.symbols, memory) if layout.awaits else None
        if layout.awaits is not None and tasks is not None:
            self.tasks = tasks
            frames.awaiters = Awaiters(memory, layout, layout.awaits, tasks, frames.codes)
        elif layout.awaits is None and not self._without_tasks_counted:
            self._without_tasks_counted = True
            recording.diagnostics.count(f"async_not_supported:{layout.version}")

    def read_names(self) -> None:
        if self.threads is not None:
            self._names.read_names(self.threads)

    def thread_states(self, tid: int) -> list[PyThread]:
        known = self.threads.known.get(tid) if self.threads is not None else None
        return [thread for thread, _ in known.states] if known else []

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        if self.threads is None or self.frames is None:
            return
        known = self.threads.find_thread(tid, gather)
        if known is None:
            self.frames.drop_copy()
        elif not self.frames.copy_frames(known, self._finder.greenlets, stack, base, gather):
            self.threads.wanted = True

    def learn(self) -> None:
        if self.frames is not None:
            self.frames.learn_reads()

    def ahead(self, tid: int) -> FrameReadPlan | None:
        known = self.threads.known.get(tid) if self.threads is not None else None
        if known is None or self.frames is None or self._finder.greenlets:
            return None
        return self.frames.plan_read(known)

    def copied_ahead(
        self, tid: int, ahead: FrameReadPlan, stack: memoryview, base: int, gather: Gather, now: Gather
    ) -> None:
        known = self.threads.known.get(tid) if self.threads is not None else None
        if self.frames is None or self.threads is None:
            return
        if known is None:
            self.frames.drop_copy()
        elif not self.frames.accept_planned(known, ahead, stack, base, gather, now):
            self.threads.wanted = True

    def left(self, tid: int) -> str:
        if self.threads is not None:
            self.threads.forget_thread(tid)
        return self._names.names.pop(tid, "")

    def take_chain(self) -> Chain | None:
        return self.frames.take_chain(self._finder.greenlets) if self.frames is not None else None

    def local_values(self, tid: int, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        """Read the local variables of a Python thread's current frames while the thread runs. The caller must compare
        these frames with the sampled ones.
        """
        if self.frames is None:
            return []
        from pyprof.interpreters.cpython.frame_reader import NO_STACK

        self.copy(tid, NO_STACK, 0, make_gather(self._finder.memory))
        return self.frames.local_values(redact)
