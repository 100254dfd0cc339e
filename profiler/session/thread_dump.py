"""The current stacks of all threads of a live process, or of a target behind a GDB stub.

Another process unwinds the stacks and resolves names, as in a recording (session/worker/).
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Self

from pyprof.collectors.base import Collector, Feedback
from pyprof.collectors.linux import procfs
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.targets import attach_checks
from pyprof.errors import UsageError
from pyprof.interpreters.base import Detected
from pyprof.interpreters.function_table import UNREAD
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.profile import Frame, Profile, ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.thread_stacks import FrameDetail, ThreadStack, leave_out_system, thread_stacks
from pyprof.model.unwind_result import StackEnd
from pyprof.objfile.untrusted_file_access import read_file, rights_below
from pyprof.options import CollectOptions, DumpOptions, RemoteOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.interpreter_readers import Runtimes
from pyprof.session.recording_factory import check_stacks
from pyprof.session.worker.interpreter_symbols import InterpreterSymbolClient
from pyprof.session.worker.messages import Extent, NamingOptions
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.session.worker.worker_process import Start, spawned

_MAX_BATCHES = 12
"""Maximum number of batches of a dump that are taken while some stacks are still truncated."""


class DumpCompletion:
    """A record of which threads a dump has sampled completely. The dump ends when each thread has a sample whose stack
    was not truncated.

    The memory of the stack was then copied, and the needed registers were known. A dump is also complete after 12
    batches, or after a time limit.
    """

    def __init__(self, threads_now: Callable[[], Set[int]], most_s: float) -> None:
        """Create the condition for a dump that has no samples yet.

        Args:
            threads_now: Returns the tids of the current threads.
            most_s: Time limit in seconds, for threads without a sample, such as one that waits for a processor.
        """
        self._threads_now = threads_now
        self._until = time.monotonic() + most_s
        self._sampled: set[int] = set()
        self._truncated: set[int] = set()
        self._unwalked: Counter[int] = Counter()
        self._batches = self._filled = 0

    def note_batch(self, batch: SampleBatch) -> None:
        """Note which threads have a sample in a batch of the dump that is not unwound yet."""
        self._sampled.update(batch.tid.tolist())
        self._unwalked.update(batch.tid[batch.kind < SampleKind.UNCHANGED].tolist())
        self._batches += 1
        self._filled += len(batch) > 0

    def note_feedback(self, feedback: Feedback) -> None:
        """Note for each thread of an unwound batch whether its stack was truncated. The dump continues while the last
        stack of a thread was.
        """
        tids = feedback.batch.tid.tolist()
        self._unwalked.subtract(tids)
        for tid, cut in zip(tids, ((feedback.missing != 0) | feedback.stop).tolist(), strict=True):
            (self._truncated.add if cut else self._truncated.discard)(tid)

    def is_complete(self) -> bool:
        """Return True if the dump needs no further batch. It needs at least one."""
        if not self._batches:
            return False
        whole = not self._truncated and not any(self._unwalked.values())
        enough = self._threads_now() <= self._sampled and (whole or self._filled >= _MAX_BATCHES)
        return enough or time.monotonic() > self._until


_RATE_HZ = 500.0
_MAX_S = 2.0
_SLOW_LINK_S = 60.0
_MAX_SOURCE = 4 << 20
_MAX_LINE = 200


@dataclass(frozen=True)
class ThreadStacks:
    """The stacks of a process at one moment.

    Attributes:
        pid: Pid of the process.
        exe: Path of the program.
        arch: Name of the architecture of its code.
        threads: The main thread first, then by tid.
        unread: Interpreters whose functions are not in the stacks.
        profile: The profile that the stacks come from; it has the modules of the frames.
    """

    pid: int
    exe: str
    arch: str
    threads: tuple[ThreadStack, ...]
    unread: tuple[Detected, ...] = ()
    profile: Profile = field(kw_only=True, repr=False)

    def __iter__(self) -> Iterator[ThreadStack]:
        return iter(self.threads)

    def __len__(self) -> int:
        return len(self.threads)

    @property
    def whole(self) -> bool:
        """True if there is a thread, and no stack is truncated: each reaches the first function of its thread."""
        return bool(self.threads) and all(thread.whole for thread in self.threads)


def of_process(pid: int, options: DumpOptions, start: Start = spawned) -> ThreadStacks:
    """Return the current stacks of a live process.

    Args:
        pid: The process.
        options: What to read and show.
        start: Starts the worker.

    Raises:
        NoSuchProcess: There is no such process.
        AccessDenied: The caller may not read it.
        NotTraceable: It cannot be stopped.
        UnsupportedArchitecture: Its architecture is unknown.
        UsageError: An option is invalid.
        WorkerDied: The worker has ended.
    """
    check_stacks(options)
    attach_checks.check_target(pid)
    sources = _SourceFiles(pid)
    with _Looking(options, start) as looking:
        states = {tid: procfs.read_state(pid, tid) for tid in procfs.list_tasks(pid)}
        exe, arch = procfs.read_exe(pid), procfs.read_arch(pid).name
        runtimes = looking.runtimes
        collector, goroutine_states = looking.threads_of(pid) if not options.goroutines else looking.goroutines_of(pid)
        profile = looking.profile(collector, lambda: states.keys() & set(_tasks(pid)), _MAX_S, exe)
        states |= goroutine_states()
        seen = _detailed(pid, list(thread_stacks(profile, states)), runtimes, sources, options)
        found = [*seen, *_unseen(pid, profile, states)]
        found = found if options.native == "all" else leave_out_system(found)
        threads = sorted(found, key=lambda thread: (thread.tid != pid, thread.tid < 0, abs(thread.tid)))
        return ThreadStacks(pid, exe, arch, tuple(threads), tuple(runtimes.unread(pid)), profile=profile)


def of_stub(remote: RemoteOptions, options: DumpOptions, start: Start = spawned) -> ThreadStacks:
    """Return the current stacks of a target behind a GDB stub.

    Args:
        remote: Address of the stub.
        options: What to read and show.
        start: Starts the worker.

    Raises:
        RemoteError: The stub cannot be reached, or does not answer.
        UsageError: An option is invalid, or not possible with a stub.
        WorkerDied: The worker has ended.
    """
    from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector

    check_stacks(options)
    if options.locals:
        raise UsageError("local variables are read of a live process on this machine", "pyprof dump -p PID --locals")
    with _Looking(options, start) as looking:
        collector = GdbRemoteCollector(remote, looking.collect, looking.diagnostics)
        profile = looking.profile(collector, lambda: collector.states().keys(), _SLOW_LINK_S, collector.path)
        threads = tuple(thread_stacks(profile, collector.states()))
        return ThreadStacks(collector.pid, collector.path, collector.arch.name, threads, profile=profile)


class _Looking:
    """The worker process that unwinds the samples of one dump, and its connection to the collector. The end of the
    `with` block kills the worker.
    """

    def __init__(self, options: DumpOptions, start: Start) -> None:
        self._options = options
        self._confined = options.confined
        self._worker = start(self._confined)
        self.diagnostics = Diagnostics()
        self.collect = CollectOptions(rate_hz=_RATE_HZ, idle=True, stack_size=options.stack_size, flush_s=0)
        self.symbols = InterpreterSymbolClient(self._worker.questions, self._worker.notify, self.diagnostics)
        self.runtimes = Runtimes(
            self.symbols,
            self.diagnostics,
            options.follow_tasks,
            options.stack_size,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close(patience_s=0)
        gc.collect()  # the tables of the collector refer to each other; this closes their descriptors

    def threads_of(self, pid: int) -> tuple[Collector, Callable[[], dict[int, str]]]:
        """Return a collector of the threads of a process, and a function that returns no states, because there are no
        goroutines.
        """
        return PtraceCollector(pid, self.collect, self.diagnostics, readers=self.runtimes.reader), dict

    def goroutines_of(self, pid: int) -> tuple[Collector, Callable[[], dict[int, str]]]:
        """Return a collector of the threads and goroutines of a process, and a function that returns the states of the
        goroutines by their tids.
        """
        from pyprof.session.goroutine_stacks import GoroutineCollector, GoroutineStacks

        find = partial(
            GoroutineStacks,
            arch=procfs.read_arch(pid),
            read_symbols=self.symbols,
            diagnostics=self.diagnostics,
            now_ns=time.monotonic_ns(),
        )
        threads = PtraceCollector(pid, self.collect, self.diagnostics, readers=self.runtimes.reader)
        collector = GoroutineCollector(threads, find)
        return collector, lambda: collector.goroutines.states() if collector.goroutines is not None else {}

    def profile(self, collector: Collector, threads_now: Callable[[], Set[int]], most_s: float, title: str) -> Profile:
        """Record with a collector until the dump is complete (see DumpCompletion), and return the profile. Raise what
        the collector and the worker raise.
        """
        naming = NamingOptions(title, _RATE_HZ, "wall", self._options.view, suggests_packages=False)
        sampling = Sampling(
            collector,
            self._worker,
            self.runtimes,
            self.diagnostics,
            self._options.unwinding,
            naming,
            self._confined,
            names_s=math.inf,
        )
        sampling.awaits_feedback = (
            True  # each attempt copies what the last one lacked, and the target is stopped no more often
        )
        completion = DumpCompletion(threads_now, most_s)
        sampling.on_batch, sampling.on_feedback = completion.note_batch, completion.note_feedback
        sampling.run(lambda: collector.stop() if completion.is_complete() else None)
        if sampling.failure is not None:
            raise sampling.failure
        return sampling.ask(Extent.CUT).profile()


def _tasks(pid: int) -> list[int]:
    """Return the tids of live threads, none if the process has ended."""
    try:
        return [tid for tid in procfs.list_tasks(pid) if procfs.read_state(pid, tid) != "zombie"]
    except ProcessLookupError:
        return []


def _unseen(pid: int, profile: Profile, states: dict[int, str]) -> Iterator[ThreadStack]:
    """Yield the threads that a dump could not sample, because a debugger holds them or they got no processor, without a
    stack.

    Threads that have begun or ended since the beginning of the dump are left out.
    """
    known = {thread.tid for thread in profile.threads}
    for tid in _tasks(pid):
        if tid in states and tid not in known:
            info = ThreadInfo(pid, tid, procfs.read_name(tid), procfs.read_name(pid))
            yield ThreadStack(info, states[tid], StackEnd.UNREADABLE, ())


def _detailed(
    pid: int, threads: list[ThreadStack], runtimes: Runtimes, sources: _SourceFiles, options: DumpOptions
) -> Iterator[ThreadStack]:
    """Yield the threads of a dump with source lines and local variables of their interpreter frames.

    Local variables are read now. They belong to the sampled frames only if the thread still has the same frames, each
    at the same line.
    """
    for thread in threads:
        frames = thread.interpreted
        values: list[tuple[FunctionPlace, dict[str, str]]] = []
        if options.locals and frames:
            values = runtimes.local_values(pid, thread.tid, options.redact)
        same = [runtimes.settled(place) for place, _ in values] == [frame.place for frame in frames]
        details = tuple(
            FrameDetail(runtimes.language(frame.place or UNREAD), sources.line(frame), values[nth][1] if same else None)
            for nth, frame in enumerate(frames)
        )
        yield replace(thread, details=details)


class _SourceFiles:
    """Lines of a target's source files, opened below the target's root folder with the rights that the target had
    before its stacks were read.

    The object is made before the stacks are taken. If the target gains rights afterwards (it executes a setuid
    program), its files are still opened with its earlier rights.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._root = f"/proc/{pid}/root"
        self._rights = rights_below(self._root)
        self._files: dict[str, list[str]] = {}

    def line(self, frame: Frame) -> str:
        """Return the line of source code of a frame without surrounding white space, "" if it cannot be read."""
        place = frame.lines[0]
        if not place.file or not place.line:
            return ""
        if place.file not in self._files:
            self._files[place.file] = self._read(place.file)
        lines = self._files[place.file]
        return lines[place.line - 1].strip()[:_MAX_LINE] if place.line <= len(lines) else ""

    def _read(self, name: str) -> list[str]:
        try:
            path = name if name.startswith("/") else os.readlink(f"/proc/{self._pid}/cwd") + "/" + name
            return read_file(self._root, path, _MAX_SOURCE, self._rights).decode("utf-8", "replace").splitlines()
        except OSError:
            return []
