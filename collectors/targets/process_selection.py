"""The processes that the user selects, and the request for a collector of them.

The user names processes by pid, or selects all processes that meet criteria (name, user, control group),
including those that start later. A process matches if it meets every given criterion. Kernel threads, zombies
and pyprof itself never match.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import time
from collections.abc import Callable, Container, Iterable
from typing import Protocol

from pyprof.collectors.linux import procfs
from pyprof.collectors.targets import attach_checks
from pyprof.collectors.thread_start_times import Identities
from pyprof.errors import FormatError, NoSuchProcess, PyprofError, UsageError
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.interpreter_reader_protocols import KernelReader, StackReader
from pyprof.model.loss_reason_texts import Note, join_pids, make_note
from pyprof.options import CollectOptions, TargetOptions
from pyprof.problem_counters import Diagnostics

_CGROUP_ROOT = "/sys/fs/cgroup"
_LOOK_NS = 500_000_000
_BUDGET = 50  # after a search that used t of processor time there is none for 50 t

Fits = Callable[[int], bool]


class Processes(Protocol):
    """The protocol of a set of processes to record, as far as a collector uses it."""

    @property
    def pids(self) -> tuple[int, ...]: ...

    @property
    def refused(self) -> tuple[Note, ...]: ...

    @property
    def lasting(self) -> bool: ...

    def find_new(self, excluded: Container[int]) -> Iterable[int]: ...


@dataclass(eq=False)
class Selection:
    """The processes that the user selected: those with given pids, or all that match criteria, also later
    ones.

    Attributes:
        pids: Pids that the user named, or that matched at the start; never empty.
        refused: Notes for the summary, one for each reason why processes cannot be recorded, or not by BPF.
        lasting: True if matching processes may start later, so that the recording continues when all have
            ended.
        everything: True if all processes of the machine are selected.
        ours: Pids of processes of the profiler that started later. They are never selected.
        refused_pids: Pids of processes that match but cannot be recorded.
    """

    pids: tuple[int, ...]
    refused: tuple[Note, ...]
    lasting: bool
    everything: bool
    _fits: Fits
    ours: set[int] = field(default_factory=set)
    refused_pids: frozenset[int] = frozenset()
    _not_before: int = 0

    def without_ended(self) -> Selection | None:
        """Return the selection without ended processes, and with a note for each ended process that the user
        named by pid.

        The result is None if none has ended, or all have.
        """
        ended = [pid for pid in self.pids if _has_ended(pid)]
        if not ended or len(ended) == len(self.pids):
            return None
        named = (
            []
            if self.lasting
            else [
                make_note("process_left_out", why=f"there is no process {pid}", pids=join_pids([pid])) for pid in ended
            ]
        )
        left = tuple(pid for pid in self.pids if pid not in ended)
        return replace(self, pids=left, refused=(*self.refused, *named))

    def find_new(self, excluded: Container[int]) -> Iterable[int]:
        """Return the pids of processes that match the criteria and are not in `excluded`. The search takes at
        most a small share of the time.
        """
        if not self.lasting or time.monotonic_ns() < self._not_before:
            return ()
        before = time.thread_time_ns()
        found = [pid for pid in procfs.list_pids() if pid not in excluded and pid not in self.ours and self._fits(pid)]
        self._not_before = time.monotonic_ns() + max(_LOOK_NS, _BUDGET * (time.thread_time_ns() - before))
        return found


def select_processes(options: TargetOptions) -> Selection:
    """Select processes by the user's options.

    Raises:
        UsageError: An option is not valid.
        NoSuchProcess: No process matches.
        PyprofError: No matching process may be recorded. The error says why for the first one.
    """
    criteria = _criteria(options)

    def fits(pid: int) -> bool:
        return _is_program(pid) and all(meets(pid) for meets in criteria)

    lasting = not options.pids
    pids = [pid for pid in procfs.list_pids() if fits(pid)] if lasting else list(dict.fromkeys(options.pids))
    if not pids:
        raise NoSuchProcess("no process fits", "ps -eo pid,user,comm,cgroup lists them")
    possible: list[int] = []
    errors: dict[int, PyprofError] = {}
    for pid in pids:
        try:
            attach_checks.check_readable(pid)
            possible.append(pid)
        except PyprofError as error:
            errors[pid] = error
    if not possible:
        raise next(iter(errors.values()))
    refused = tuple(
        make_note("process_left_out", why=error.message, pids=join_pids([pid])) for pid, error in errors.items()
    )
    if lasting and len(refused) > 1:
        as_root = make_note("processes_left_out", count=len(refused))
        refused = (make_note("processes_left_out_without_root", count=len(refused)) if os.geteuid() else as_root,)
    everything = options.everything and not criteria
    return Selection(tuple(possible), refused, lasting, everything, fits, refused_pids=frozenset(errors))


def _criteria(options: TargetOptions) -> list[Fits]:
    found: list[Fits] = []
    if options.user is not None:
        uid = _uid(options.user)
        found.append(lambda pid: _owner(pid) == uid)
    if options.cgroup is not None:
        path = _cgroup(options.cgroup)
        found.append(lambda pid: any(_is_below(own, path) for own in _cgroups(pid)))
    if options.name is not None:
        pattern = options.name
        found.append(lambda pid: _is_named(pid, pattern))
    return found


def _is_program(pid: int) -> bool:
    stat = _stat(pid) if pid not in procfs.own_pids() else None
    return stat is not None and not stat.is_kernel_thread and not stat.is_zombie


def _has_ended(pid: int) -> bool:
    stat = _stat(pid)
    return stat is None or stat.is_zombie


def _stat(pid: int) -> procfs.Stat | None:
    """Return the fields of /proc/PID/stat of a process, or None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return procfs.parse_stat(file.read())
    except (OSError, FormatError):
        return None


def _uid(user: str) -> int:
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UsageError(f"there is no user {user}", "getent passwd lists them") from None


def _owner(pid: int) -> int:
    """Return the effective uid of a process, or -1 if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _cgroup(path: str) -> str:
    """Return a control group's path as in /proc/PID/cgroup, relative to the root of its hierarchy."""
    inside = "/" + path.removeprefix(_CGROUP_ROOT).strip("/")
    hierarchies = [_CGROUP_ROOT, *(entry.path for entry in _folders(_CGROUP_ROOT))]
    if not any(os.path.isdir(hierarchy + inside) for hierarchy in hierarchies):
        raise UsageError(f"there is no control group {inside}", "systemd-cgls lists them; so does cat /proc/PID/cgroup")
    return inside


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _cgroups(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            return [line.rstrip("\n").split(":", 2)[2] for line in file if line.count(":") >= 2]
    except OSError:
        return []


def _is_below(path: str, group: str) -> bool:
    return path == group or path.startswith(group.rstrip("/") + "/")


def _is_named(pid: int, pattern: re.Pattern[str]) -> bool:
    """Return True if a pattern matches a process's comm (15 letters at most), the file name of its program,
    or its command line.
    """
    names = procfs.read_name(pid), os.path.basename(procfs.read_exe(pid))
    if any(map(pattern.search, names)):
        return True
    return bool(pattern.search(procfs.read_command_line(pid))) and pid not in _callers()


@functools.cache
def _callers() -> frozenset[int]:
    """Return the pids of the profiler's ancestors, such as sudo and shells. They must not be selected by a pattern that
    is in their own command lines.
    """
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = procfs.parse_stat(file.read()).ppid
        except (OSError, FormatError):
            break
    return frozenset(found)


class InterpreterReaders(Protocol):
    """The protocol of an object from which collectors get the readers of interpreters in recorded processes.

    Attributes:
        follow_tasks: True to show the asyncio tasks that await the running one.
    """

    follow_tasks: bool

    def reader(self, pid: int) -> StackReader:
        """Return a reader of a process's interpreter that copies interpreter frames in ptrace stops."""
        ...

    def kernel_reader(self, pid: int) -> KernelReader:
        """Return a reader of a process's interpreter for BPF: it locates interpreter frames, and decodes what
        the BPF program has copied.
        """
        ...

    def needs_stops(self, pid: int) -> str | None:
        """Return the reason why a process's interpreter needs ptrace stops, "" if it needs none, None if that
        is not known yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A request to open a collector: the processes, the options, and what collectors share.

    Attributes:
        selection: The processes.
        options: Options of the recording.
        diagnostics: Counters of problems.
        interpreters: Source of readers of interpreters, None if no interpreter is wanted.
        program: Path of the program that the process will execute, "" for none. Only the new program is recorded.
        frames_note: Note for the summary to add if samples by ptrace stops have frames of an interpreter,
            None for none.
        ids: Identifiers shared by all collectors of the recording.
    """

    selection: Selection
    options: CollectOptions
    diagnostics: Diagnostics
    interpreters: InterpreterReaders | None = None
    program: str = ""
    frames_note: Note | None = None
    ids: Identities = field(default_factory=Identities)

    @property
    def launched(self) -> bool:
        return bool(self.program)

    @property
    def readers(self) -> Callable[[int], StackReader] | None:
        """The function that returns the reader of a process's interpreter by pid, None if no interpreter is wanted."""
        return self.interpreters.reader if self.interpreters else None

    def with_processes(self, pids: tuple[int, ...]) -> Selection:
        """Return the selection of this request with its pids replaced by `pids`."""
        return replace(self.selection, pids=pids)
