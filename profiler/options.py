"""Options of a recording, as values. The command line makes them, everybody else reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_RATE_HZ = 99.0
DEFAULT_STACK_SIZE = 1 << 20
DEFAULT_MAX_DEPTH = 1 << 20
FALLBACK = "fp"
"""The name in UnwindOptions.sources that is no table: it allows what is done where all tables passed."""
SCAN = "scan"
"""Like FALLBACK: it allows to guess, where that refuses, too."""
RUN_TIME_SOURCES = ("libunwind_dynamic", "gdb_jit", "jitdump")
"""Those of code that no file describes."""
DEFAULT_SOURCES = ("sframe", "eh_frame", "exidx", "debug_frame", "breakpad", *RUN_TIME_SOURCES, FALLBACK)
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


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """rate_hz: samples a second of each thread. idle: threads that are not running; running: those that are. waits: say
    in what sleeping threads sleep. stop_sleepers: a sleeping thread may be stopped, once in a sleep, if its stack
    cannot be walked otherwise. kernel: frames of the kernel, too. subprocesses: follow children. thread: only threads
    in whose name it is found.

    stack_size: most bytes of stack copied. max_overhead: most share (0..1) of time that a target may be stopped, None
    for no limit. flush_s: a batch is handed over at the latest after this time (0: after each sampling time).
    """

    rate_hz: float = DEFAULT_RATE_HZ
    idle: bool = False
    running: bool = True
    waits: bool = False
    stop_sleepers: bool = True
    kernel: bool = False
    subprocesses: bool = False
    thread: re.Pattern[str] | None = None
    stack_size: int = DEFAULT_STACK_SIZE
    max_overhead: float | None = None
    flush_s: float = 0.5


@dataclass(frozen=True, slots=True)
class UnwindOptions:
    """sources: names in the order in which they are asked, per pc. max_depth: most frames of a stack.

    symbols: where Breakpad symbol files are: files, folders, URLs.
    """

    sources: tuple[str, ...] = DEFAULT_SOURCES
    max_depth: int = DEFAULT_MAX_DEPTH
    symbols: tuple[str, ...] = ()


NATIVE_VIEWS = ("all", "extensions", "none")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """native: which native frames are shown in stacks that have an interpreter's: all, all but the interpreter's own
    ("extensions"), or none. lock_holder: only samples of threads that held the interpreter's lock.
    """

    native: str = "extensions"
    lock_holder: bool = False
