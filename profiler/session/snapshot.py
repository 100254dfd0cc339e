"""The stacks of all threads of a live process, now."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

from pyprof.collectors.linux import procfs
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.targets import attach
from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.base import Detected
from pyprof.interpreters.code_book import UNREAD
from pyprof.model.interpreter import FunctionPlace
from pyprof.model.profile import Frame, Profile, ThreadInfo
from pyprof.model.threads import FrameDetail, ThreadStack, thread_stacks
from pyprof.model.walk import StackEnd
from pyprof.objfile.foreign_path import read_file, rights_below
from pyprof.options import CollectOptions, DumpOptions
from pyprof.records import dataclass, field, replace
from pyprof.session.opening import check_stacks
from pyprof.session.runtimes import Runtimes
from pyprof.session.session import RecordingFiles, Session

_RATE_HZ = 500.0
_MOST_SOURCE = 4 << 20
_LONGEST_LINE = 200


@dataclass(frozen=True)
class ThreadStacks:
    """A process at one moment. exe: its program's path; arch: what code it runs. threads: the main one first, then by
    tid. unread: interpreters whose functions are not in the stacks. profile: what the stacks were taken from; its
    modules are those of frames.
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
        """Is there a thread, and does every stack reach its thread's first function?"""
        return bool(self.threads) and all(thread.whole for thread in self.threads)


def of_process(pid: int, options: DumpOptions) -> ThreadStacks:
    """Raises NoSuchProcess, AccessDenied, NotTraceable, UnsupportedArchitecture, UsageError."""
    check_stacks(options)
    attach.check_target(pid)
    try:
        return _taken(pid, options)
    finally:
        gc.collect()  # tables and object files refer to one another; their descriptors are closed with them


def _taken(pid: int, options: DumpOptions) -> ThreadStacks:
    states = {tid: procfs.state(pid, tid) for tid in procfs.tasks(pid)}
    exe, arch = procfs.exe(pid), procfs.arch(pid).name
    collect = CollectOptions(rate_hz=_RATE_HZ, idle=True, stack_size=options.stack_size, flush_s=0)
    diagnostics = Diagnostics()
    files = RecordingFiles(options.unwinding, diagnostics, options.follow_tasks, options.stack_size)
    collector = PtraceCollector(pid, collect, diagnostics, readers=files.runtimes.reader)
    session = Session(collector, options.unwinding, diagnostics, files)
    window = session.snapshot(lambda: states.keys() & set(_tasks(pid)))
    profile = session.profile(window, exe, collect.rate_hz, mode="wall", shown=options.view)
    seen = _detailed(pid, list(thread_stacks(profile, states)), files.runtimes, options)
    threads = sorted([*seen, *_unseen(pid, profile, states)], key=lambda thread: (thread.tid != pid, thread.tid))
    return ThreadStacks(pid, exe, arch, tuple(threads), tuple(files.runtimes.unread(pid)), profile=profile)


def _tasks(pid: int) -> list[int]:
    """Tids, none once the process has ended."""
    try:
        return [tid for tid in procfs.tasks(pid) if procfs.state(pid, tid) != "zombie"]
    except ProcessLookupError:
        return []


def _unseen(pid: int, profile: Profile, states: dict[int, str]) -> Iterator[ThreadStack]:
    """Threads that could not be sampled: held by a debugger, or without a processor.

    Those that began since are no part of the moment that is shown, those that have ended neither.
    """
    known = {thread.tid for thread in profile.threads}
    for tid in _tasks(pid):
        if tid in states and tid not in known:
            info = ThreadInfo(pid, tid, procfs.name(tid), procfs.name(pid))
            yield ThreadStack(info, states[tid], StackEnd.UNREADABLE, ())


def _detailed(pid: int, threads: list[ThreadStack], runtimes: Runtimes, options: DumpOptions) -> Iterator[ThreadStack]:
    """With what is known of interpreters' frames. Local variables are read now: only where the thread has the very
    frames still that were sampled.
    """
    sources = _SourceFiles(pid)
    for thread in threads:
        frames = thread.interpreted
        values: list[tuple[FunctionPlace, dict[str, str]]] = []
        if options.locals and frames:
            values = runtimes.local_values(pid, thread.tid, options.redact)
        same = [place for place, _ in values] == [frame.place for frame in frames]
        details = tuple(
            FrameDetail(runtimes.language(frame.place or UNREAD), sources.line(frame), values[nth][1] if same else None)
            for nth, frame in enumerate(frames)
        )
        yield replace(thread, details=details)


class _SourceFiles:
    """Lines of the target's source files, as they are now where the target sees them, and may read them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._root = f"/proc/{pid}/root"
        self._rights = rights_below(self._root)
        self._files: dict[str, list[str]] = {}

    def line(self, frame: Frame) -> str:
        """Without what stands around it; "" where the file cannot be read or has no such line."""
        place = frame.lines[0]
        if not place.file or not place.line:
            return ""
        if place.file not in self._files:
            self._files[place.file] = self._read(place.file)
        lines = self._files[place.file]
        return lines[place.line - 1].strip()[:_LONGEST_LINE] if place.line <= len(lines) else ""

    def _read(self, name: str) -> list[str]:
        try:
            path = name if name.startswith("/") else os.readlink(f"/proc/{self._pid}/cwd") + "/" + name
            return read_file(self._root, path, _MOST_SOURCE, self._rights).decode("utf-8", "replace").splitlines()
        except OSError:
            return []
