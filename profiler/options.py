"""Options of a recording, as values. The command line makes them, everybody else reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyprof.frame_sources import SCAN, selectable
from pyprof.records import dataclass, field, field_names

if TYPE_CHECKING:
    from pyprof.handover import Handover, Stride

DEFAULT_RATE_HZ = 99.0
DEFAULT_STACK_SIZE = 1 << 20
DEFAULT_MIN_BLOCK_S = 0.001
DEFAULT_FLUSH_S = 0.5
HOLD = 8
"""Each batch costs about as much as a hundred samples: see CollectOptions."""
LEAST_STACK_SIZE, MOST_STACK_SIZE = 1 << 12, 1 << 30
MOST_RATE_HZ = 1e6
DEFAULT_MAX_DEPTH = 1 << 20
DEFAULT_SOURCES = tuple(source.name for source in selectable() if source.name != SCAN)
"""Sources in the order in which they are asked."""
KNOWN_SOURCES = (*DEFAULT_SOURCES, SCAN)
"""Names for --unwind."""


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Which processes: pids, or where there are none, all (everything) or those that meet each criterion given. user:
    name or number; cgroup: path of a control group, those below it included; name: found in the name of the process or
    of its program, or in its command line.
    """

    pids: tuple[int, ...] = ()
    everything: bool = False
    user: str | None = None
    cgroup: str | None = None
    name: re.Pattern[str] | None = None

    @property
    def several(self) -> bool:
        """May there be more than one?"""
        return len(self.pids) != 1

    def as_text(self) -> dict[str, str]:
        """What was given, for a recording that is kept."""
        return {name: _as_text(value) for name, value in _fields(self).items() if value}


def _handover() -> Handover:
    from pyprof.handover import Handover  # what only parses options needs none

    return Handover()


def _stride() -> Stride:
    from pyprof.handover import Stride

    return Stride()


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """rate_hz: samples a second of each thread. idle: threads that are not running; running: those that are.
    stop_sleepers: a sleeping thread may be stopped, once in a sleep, if its stack cannot be walked otherwise. kernel:
    frames of the kernel, too. subprocesses: follow children. thread: only threads in whose name it is found. wakers:
    who ended each wait, too. locks: only waits for locks.

    min_block_s: shorter waits need no stack of their own. stack_size: most bytes of stack copied. max_overhead: most
    share (0..1) of time that a target may be stopped, None for no limit. flush_s: a batch is yielded at the latest
    after this time (0: after each sampling time), or some times as long where nobody watches (Handover), be it an
    empty one: samples may wait for others for HOLD times as
    long, but when handover says so, all are yielded. stride: how many sampling times are used.
    """

    rate_hz: float = DEFAULT_RATE_HZ
    idle: bool = False
    running: bool = True
    stop_sleepers: bool = True
    kernel: bool = False
    subprocesses: bool = False
    thread: re.Pattern[str] | None = None
    stack_size: int = DEFAULT_STACK_SIZE
    max_overhead: float | None = None
    flush_s: float = DEFAULT_FLUSH_S
    min_block_s: float = DEFAULT_MIN_BLOCK_S
    wakers: bool = False
    locks: bool = False
    handover: Handover = field(default_factory=_handover)
    stride: Stride = field(default_factory=_stride)


@dataclass(frozen=True, slots=True)
class UnwindOptions:
    """sources: names in the order in which they are asked, per pc. max_depth: most frames of a stack.

    symbols: where Breakpad symbol files are: files, folders, URLs.
    """

    sources: tuple[str, ...] = DEFAULT_SOURCES
    max_depth: int = DEFAULT_MAX_DEPTH
    symbols: tuple[str, ...] = ()


SIMPLE_MODES = ("cpu", "wall", "offcpu")
"""Which any collector has."""
MODES = (*SIMPLE_MODES, "lock")
NATIVE_VIEWS = {
    "all": "all",
    "extensions": "not the interpreter's own",
    "calls": "of what its functions call, only the function called",
    "none": "none",
}
"""Which native frames stand in stacks that have an interpreter's, by name; session/native_views.py has the views."""

DEFAULT_NATIVE = "extensions"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """native: which native frames are shown in stacks that have an interpreter's, of NATIVE_VIEWS. lock_holder: only
    samples of threads that held the interpreter's lock.
    """

    native: str = DEFAULT_NATIVE
    lock_holder: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """How stacks are read and shown.

    stack_size: most bytes of a stack that are copied at a stop.
    unwind: sources of unwind rules in the order in which they are asked.
    symbols: Breakpad symbol files: files, folders or URLs.
    max_depth: most frames of a stack.
    native: which native frames stand in stacks that have Python's, of NATIVE_VIEWS.
    follow_tasks: asyncio: above a task's coroutine those of the tasks that await it (CPython 3.14 and later).
    sandbox: the process that parses files of others gives up its rights before.
    """

    stack_size: int = DEFAULT_STACK_SIZE
    unwind: Sequence[str] = DEFAULT_SOURCES
    symbols: Sequence[str] = ()
    max_depth: int = DEFAULT_MAX_DEPTH
    native: str = DEFAULT_NATIVE
    follow_tasks: bool = False
    sandbox: bool = False

    @property
    def unwinding(self) -> UnwindOptions:
        return UnwindOptions(tuple(self.unwind), self.max_depth, tuple(self.symbols))

    @property
    def confined(self) -> bool:
        """Does the worker give up its rights? What the user names by symbols is read with the user's."""
        return self.sandbox and not self.symbols

    @property
    def view(self) -> ViewOptions:
        return ViewOptions(self.native)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions(StackOptions):
    """How a recording is made. The keyword arguments of `pyprof.record` and `pyprof.attach` are these fields and those
    of StackOptions.

    duration: seconds after which the recording ends, None: when the target has ended or stop() is called.
    rate: samples a second of each thread.
    mode: "cpu": threads that run; "offcpu": threads that sleep; "wall": both; "lock": threads
    that wait for a lock, by lock, and who had it.
    collector: "bpf": a program in the kernel takes the samples; "perf": the kernel does; "ptrace": by short stops;
    "auto": what is allowed and sees whole stacks.
    subprocesses: also the children that exist and those to come, until the last has ended; None: of a command, until
    the command ends.
    kernel: also the kernel's frames; not with "ptrace".
    thread: only threads in whose name this pattern is found.
    max_overhead: most share (0..1) of the time that the target may be stopped, None for no limit; the rate falls to
    keep it.
    lock_holder: only samples of threads that hold the interpreter's lock.
    min_block: seconds; with "bpf" each wait that is longer has a stack of its own, shorter ones where it is quiet.
    labels: what the profile is labelled with, such as {"env": "prod"}.
    wakers: "bpf" only: inside each wait's stack who ended it, and that thread's stack.
    """

    duration: float | None = None
    rate: float = DEFAULT_RATE_HZ
    mode: str = "cpu"
    collector: str = "auto"
    subprocesses: bool | None = None
    kernel: bool = False
    thread: str | re.Pattern[str] | None = None
    max_overhead: float | None = None
    lock_holder: bool = False
    min_block: float = DEFAULT_MIN_BLOCK_S
    labels: Mapping[str, str] | None = None
    wakers: bool = False

    def collecting(self, subprocesses: bool) -> CollectOptions:
        """The part that a collector gets. subprocesses: where None was given."""
        return CollectOptions(
            rate_hz=self.rate,
            idle=self.mode != "cpu",
            running=self.mode in ("cpu", "wall"),
            kernel=self.kernel,
            subprocesses=subprocesses if self.subprocesses is None else self.subprocesses,
            thread=re.compile(self.thread) if self.thread is not None else None,
            stack_size=self.stack_size,
            max_overhead=self.max_overhead,
            min_block_s=self.min_block,
            wakers=self.wakers or self.mode == "lock",
            locks=self.mode == "lock",
        )

    @property
    def view(self) -> ViewOptions:
        return ViewOptions(self.native, self.lock_holder)

    def as_text(self) -> dict[str, str]:
        """All fields that were given or have a default, for a recording that is kept."""
        return {name: _as_text(value) for name, value in _fields(self).items() if value is not None}


def _fields(options: object) -> dict[str, object]:
    return {name: getattr(options, name) for name in field_names(type(options))}


def _as_text(value: object) -> str:
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, each in sorted(value.items()))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions(StackOptions):
    """How threads are looked at. The keyword arguments of `pyprof.dump` are these fields and those of StackOptions.

    locals: also the local variables of Python frames, bounded.
    redact: not the values of names that look secret, and passwords within texts.
    """

    locals: bool = False
    redact: bool = True


@dataclass(frozen=True, slots=True)
class DeadTarget:
    """A core file, or a minidump or microdump, and how it is looked at. path, exe, sysroot: of the user, "" for none.
    stack_size: first bytes of each stack. registers: also those of each frame. sandbox: see StackOptions.
    """

    path: str
    is_minidump: bool
    exe: str
    sysroot: str
    stack_size: int
    unwind: UnwindOptions
    registers: bool
    sandbox: bool


DEFAULT_ANSWER_S = 5.0
"""A stub that says nothing for so long after a request is silent."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """What runs behind a GDB stub. address: HOST:PORT. exe, sysroot: paths here, "" if not given. step: instructions
    between two samples, 0 for sampling by time. answer_s: how long a stub may be silent.
    """

    address: str
    exe: str = ""
    sysroot: str = ""
    step: int = 0
    answer_s: float = DEFAULT_ANSWER_S
