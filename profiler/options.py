"""Options of a recording, as values, and the table of frame sources. The command line or a caller of the library makes
them.

The number of a row of the table of frame sources is a Trust (model/unwind_result.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyprof.lazy_dataclasses import dataclass, field, field_names

if TYPE_CHECKING:
    from pyprof.collector_control import FlushProtocol, Stride


@dataclass(frozen=True, slots=True)
class FrameSource:
    """A way in which the unwinder finds a frame.

    Attributes:
        name: Name in all outputs, a Trust in lower case.
        option: Name for --unwind that enables it, "" if there is none.
        words: Short description in the flame graph's page.
        meaning: One sentence for the documentation, without its full stop.
    """

    name: str
    option: str
    words: str
    meaning: str

    @property
    def described(self) -> str:
        """Return name and description of the source for help messages."""
        return f"{self.name}: {self.words}"


FRAME_SOURCES = (
    FrameSource("context", "", "registers (innermost frame)", "The kernel's registers, of the innermost frame"),
    FrameSource("sframe", "sframe", "SFrame", "The file's `.sframe`"),
    FrameSource("eh_frame", "eh_frame", ".eh_frame", "The file's `.eh_frame`"),
    FrameSource("exidx", "exidx", ".ARM.exidx", "The file's `.ARM.exidx`"),
    FrameSource("go", "go", "Go's function table", "The `.gopclntab` of a Go program, stripped or not"),
    FrameSource("pdata", "pdata", ".pdata", "The `.pdata` and `.xdata` of a Windows x64 module"),
    FrameSource(
        "debug_frame", "debug_frame", ".debug_frame", "The `.debug_frame` of the file or of its separate debug file"
    ),
    FrameSource("breakpad", "breakpad", "Breakpad file", "A Breakpad symbol file that `--symbols` gave"),
    FrameSource(
        "libunwind_dynamic",
        "libunwind_dynamic",
        "code registered with libunwind",
        "What the program registered by `_U_dyn_register`",
    ),
    FrameSource(
        "gdb_jit", "gdb_jit", "JIT code registered for GDB", "An object file that the program registered for GDB"
    ),
    FrameSource(
        "hotspot",
        "hotspot",
        "Java code (HotSpot)",
        "What HotSpot states about its code: the size of a compiled frame, the links of an interpreter frame",
    ),
    FrameSource("v8", "v8", "JavaScript code (V8)", "The begin and the end of the frames of V8's code"),
    FrameSource("jitdump", "jitdump", "jitdump file", "The unwind tables of a jitdump file"),
    FrameSource(
        "code",
        "code",
        "the function's code",
        "What the instructions on all paths of a function do to the stack pointer",
    ),
    FrameSource("fp", "fp", "frame pointer", "A frame record that the frame pointer leads to"),
    FrameSource("lr", "fp", "link register", "The link register, of a function that has no frame yet or makes none"),
    FrameSource("epilogue", "fp", "instructions up to the return", "The instructions that lead to the frame's return"),
    FrameSource(
        "scan", "scan", "a guess: a word on the stack", "A guess: a word on the stack that may be a return address"
    ),
    FrameSource("sigreturn", "", "signal frame", "The kernel's signal frame, by its known layout"),
    FrameSource(
        "interpreter",
        "",
        "the interpreter's own chain",
        "The interpreter's own chain of frames, at its evaluator's frame",
    ),
    FrameSource("kernel", "", "the kernel", "The kernel's own stack, or the call in which a thread sleeps"),
    FrameSource(
        "completed",
        "",
        "a later whole stack of the same thread",
        "A whole stack of the same thread at another moment: what was read of both was the same",
    ),
)
"""All frame sources. Those whose option equals their name are in the order in which the unwinder tries them."""

CODE, FALLBACK, SCAN = "code", "fp", "scan"
"""Values of --unwind that name no unwind table. CODE (analysis of machine code) is tried after all tables, then
FALLBACK (frame pointers). SCAN, a search of the stack for return addresses, comes last.
"""


def selectable() -> tuple[FrameSource, ...]:
    """Return the frame sources that the option --unwind accepts, in the order in which the unwinder tries them."""
    return tuple(source for source in FRAME_SOURCES if source.name == source.option)


AUTO = "auto"
"""The value of --collector that lets pyprof choose a source of samples for each process."""
DEFAULT_RATE_HZ = 99.0
DEFAULT_STACK_SIZE = 1 << 20
DEFAULT_MIN_BLOCK_S = 0.001
DEFAULT_FLUSH_S = 0.5
HOLD = 8
"""Factor of CollectOptions.flush_s. A collector may hold samples back for the product, so that batches are large: a
batch costs as much as 100 samples.
"""
MIN_STACK_SIZE, MAX_STACK_SIZE = 1 << 12, 1 << 30
MAX_RATE_HZ = 1e6
DEFAULT_MAX_DEPTH = 1 << 20
DEFAULT_SOURCES = tuple(source.name for source in selectable() if source.name != SCAN)
"""Unwind sources in the order in which the unwinder tries them."""
KNOWN_SOURCES = (*DEFAULT_SOURCES, SCAN)
"""Valid names for --unwind."""


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """A selection of processes: by pid, all, or those that meet all given criteria.

    Attributes:
        pids: Pids of the processes. If it is empty, the other fields select.
        everything: True for all processes.
        user: Name or number of the user.
        cgroup: Path of a control group; groups below it are included.
        name: Pattern that is found in the name of the process or its program, or in its command line.
    """

    pids: tuple[int, ...] = ()
    everything: bool = False
    user: str | None = None
    cgroup: str | None = None
    name: re.Pattern[str] | None = None

    @property
    def several(self) -> bool:
        """True if the options may select more than one process."""
        return len(self.pids) != 1

    def as_text(self) -> dict[str, str]:
        """Return the given target options as text, for a recording file."""
        return {name: _as_text(value) for name, value in _fields(self).items() if value}


def _handover() -> FlushProtocol:
    from pyprof.collector_control import FlushProtocol  # code that only parses options needs no FlushProtocol

    return FlushProtocol()


def _stride() -> Stride:
    from pyprof.collector_control import Stride

    return Stride()


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The options of a collector of samples.

    Attributes:
        rate_hz: Samples per second of each thread.
        idle: True to sample threads that do not run.
        running: True to sample threads that run.
        stop_sleepers: True if a sleeping thread may be stopped, once in a sleep, if its stack cannot be unwound
            otherwise.
        kernel: True to record kernel frames, too.
        subprocesses: True to follow children.
        thread: Only threads in whose name this pattern is found.
        stack_size: Maximum number of stack bytes that are copied.
        max_overhead: Maximum share (0..1) of the time that a target may be stopped, None for no limit.
        flush_s: A batch, perhaps an empty one, is yielded at least this often, in seconds; 0: after each sampling time.
            The time may be longer if no flushes are requested at an interval (FlushProtocol). A collector may hold
            samples back for HOLD times as long, but a flush yields all samples.
        min_block_s: Shorter waits need no separate stack, in seconds.
        wakers: True to record the waker of each wait, too.
        locks: True to record only waits for locks.
        handover: Flush protocol with the owner of the windows.
        stride: Fraction of the sampling times that is used.
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
    handover: FlushProtocol = field(default_factory=_handover)
    stride: Stride = field(default_factory=_stride)


@dataclass(frozen=True, slots=True)
class UnwindOptions:
    """The options of the stack unwinder.

    Attributes:
        sources: Names of the sources in the order in which they are tried for a pc.
        max_depth: Maximum number of frames of a stack.
        symbols: Breakpad symbol files: files, folders or URLs.
    """

    sources: tuple[str, ...] = DEFAULT_SOURCES
    max_depth: int = DEFAULT_MAX_DEPTH
    symbols: tuple[str, ...] = ()


SIMPLE_MODES = ("cpu", "wall", "offcpu")
"""Modes of recording ("cpu" and so on) that every collector supports."""
MODES = (*SIMPLE_MODES, "lock")
NATIVE_VIEWS = {
    "all": "every native frame",
    "extensions": "all but those of the interpreter itself",
    "calls": "only native functions that a Python, Java or JavaScript function calls directly",
    "none": "no native frame",
}
"""Views that select the native frames in stacks that have interpreter frames, by name
(pipeline/native_frame_views.py)."""

DEFAULT_NATIVE = "extensions"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options that select the frames and samples to show.

    Attributes:
        native: Which native frames are shown in stacks that have interpreter frames, a key of NATIVE_VIEWS.
        lock_holder: True to show only samples of threads that held the interpreter's lock.
    """

    native: str = DEFAULT_NATIVE
    lock_holder: bool = False


def is_confined(sandbox: bool | None, symbols: Sequence[str] = ()) -> bool:
    """Return True if the process that parses untrusted files gives up its rights.

    Args:
        sandbox: The user's choice. None means False.
        symbols: Breakpad symbol files that the user named. They are read with the user's rights.
    """
    return bool(sandbox) and not symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """Options that say how stacks are unwound and which frames are shown.

    Attributes:
        stack_size: Maximum number of bytes of a stack that are copied at a stop.
        unwind: Sources of unwind rules in the order in which they are tried.
        symbols: Breakpad symbol files: files, folders or URLs.
        max_depth: Maximum number of frames of a stack.
        native: Which native frames are shown in stacks that have Python frames, a key of NATIVE_VIEWS.
        follow_tasks: For asyncio, show the coroutines of the awaiting tasks above those of a task (CPython 3.14 and
            later).
        sandbox: True to parse untrusted files in an unprivileged, seccomp-confined process. None for the default
            (is_confined()).
    """

    stack_size: int = DEFAULT_STACK_SIZE
    unwind: Sequence[str] = DEFAULT_SOURCES
    symbols: Sequence[str] = ()
    max_depth: int = DEFAULT_MAX_DEPTH
    native: str = DEFAULT_NATIVE
    follow_tasks: bool = False
    sandbox: bool | None = None

    @property
    def unwinding(self) -> UnwindOptions:
        """The options that the unwinder needs."""
        return UnwindOptions(tuple(self.unwind), self.max_depth, tuple(self.symbols))

    @property
    def confined(self) -> bool:
        """True if the worker, which parses files, gives up its rights.

        It keeps the user's rights if `symbols` names files, because these may need them.
        """
        return is_confined(self.sandbox, self.symbols)

    @property
    def view(self) -> ViewOptions:
        """The options that choose which frames a profile shows."""
        return ViewOptions(self.native)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions(StackOptions):
    """The options of a recording.

    The keyword arguments of `pyprof.record` and `pyprof.attach` are these fields and those of StackOptions.

    Attributes:
        duration: Seconds after which the recording ends. None: when the target has ended or stop() is called.
        rate: Samples per second of each thread.
        mode: "cpu": threads that run; "offcpu": threads that sleep; "wall": both; "lock": threads that wait for a lock,
            with the lock and its holder.
        collector: "bpf": a BPF program takes the samples; "perf": perf_events; "ptrace": short stops; "auto": one that
            is allowed and sees complete stacks.
        subprocesses: True to record current and future children until the last one has ended. None: for a command,
            until the command ends.
        kernel: True to record kernel frames, too; not with "ptrace".
        thread: Only threads in whose name this pattern is found.
        max_overhead: Maximum share (0..1) of the time that the target may be stopped, None for no limit. The rate is
            reduced to keep it.
        lock_holder: True to show only samples of threads that hold the interpreter's lock.
        min_block: Seconds. With "bpf" each longer wait has a separate stack, and shorter ones if there are few.
        labels: Labels of the profile, such as {"env": "prod"}.
        wakers: With "bpf" only: show inside each wait's stack which thread ended it, and the stack of that thread.
    """

    duration: float | None = None
    rate: float = DEFAULT_RATE_HZ
    mode: str = "cpu"
    collector: str = AUTO
    subprocesses: bool | None = None
    kernel: bool = False
    thread: str | re.Pattern[str] | None = None
    max_overhead: float | None = None
    lock_holder: bool = False
    min_block: float = DEFAULT_MIN_BLOCK_S
    labels: Mapping[str, str] | None = None
    wakers: bool = False

    def collecting(self, subprocesses: bool) -> CollectOptions:
        """Return the part of a recording's options that its collector needs.

        Args:
            subprocesses: Value for `subprocesses` if that is None.
        """
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
        """The options that choose which frames a profile shows."""
        return ViewOptions(self.native, self.lock_holder)

    def as_text(self) -> dict[str, str]:
        """Return all fields that are not None as text, for a recording file."""
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
    """The options of a dump of all threads' stacks.

    The keyword arguments of `pyprof.dump` are these fields and those of StackOptions.

    Attributes:
        locals: True to show the local variables of Python frames, with bounded length.
        redact: True to hide values of variables with names that look secret, and passwords in texts.
        goroutines: True to show the goroutines of a Go program that no thread runs, too.
    """

    locals: bool = False
    redact: bool = True
    goroutines: bool = False


@dataclass(frozen=True, slots=True)
class DeadTarget:
    """A core file, a minidump or a microdump, and options for its examination.

    Attributes:
        path: Path of the file.
        is_minidump: True for a minidump or a microdump.
        exe: Path of the program from the user, "" if not given.
        sysroot: Root folder of the modules from the user, "" if not given.
        stack_size: Maximum number of bytes of a stack that are read.
        unwind: Options of the unwinder.
        registers: True to report the registers of each frame, too.
        sandbox: True to parse untrusted files in an unprivileged, seccomp-confined process. None for the default.
        goroutines: True to show the goroutines of a Go program that no thread runs, too.
    """

    path: str
    is_minidump: bool
    exe: str
    sysroot: str
    stack_size: int
    unwind: UnwindOptions
    registers: bool
    sandbox: bool | None = None
    goroutines: bool = False


DEFAULT_ANSWER_S = 5.0
"""Default time in seconds within which a GDB stub must answer a request."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The options of a target behind a GDB stub.

    Attributes:
        address: HOST:PORT.
        exe: Path of the program on this machine, "" if not given.
        sysroot: Root folder of the modules on this machine, "" if not given.
        step: Number of instructions between two samples, 0 to sample by time.
        answer_s: Time in which the stub must answer, in seconds.
    """

    address: str
    exe: str = ""
    sysroot: str = ""
    step: int = 0
    answer_s: float = DEFAULT_ANSWER_S
