"""A campaign that kills profilers with SIGKILL at random moments, with targets that notice each side effect."""

from __future__ import annotations

import mmap
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.procfs import list_tasks
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.collectors.targets import MAX_S, Program
from tests.collectors.transfers import CUT_SHORT, shorts

WAITS = ("epoll_wait", "recv", "semtimedop", "inotify", "sigtimedwait", "futex", "nanosleep", "poll", "pipe")
# these arguments make the program's children avoid calls that a stop cuts short
TRANSFERS = ("write", "sendmsg", "sendfile", "copy_file_range")
NAMESPACES = ("unshare", "--user", "--pid", "--fork", "--kill-child")
RUNS = frozenset("RSDZX")
"""States of threads that are not stopped."""


@dataclass(frozen=True)
class Result:
    """The result of a campaign on one target.

    Attributes:
        printed: Output of the target.
        kills: Number of killed profilers.
        counted: Number of short calls that the profilers counted.
    """

    printed: str
    kills: int
    counted: int


@dataclass(frozen=True)
class Case:
    """A target of the campaign.

    Attributes:
        name: Name of the case.
        command: A program of tests/programs and its arguments.
        wrong: Function that returns what is wrong with a result, or "".
        prefix: Command prefix of the program.
        halts: Whether signals stop and continue the target meanwhile.
    """

    name: str
    command: tuple[str, ...]
    wrong: Callable[[Result], str]
    prefix: tuple[str, ...] = ()
    halts: bool = False


def _prints(right: str) -> Callable[[Result], str]:
    return lambda result: "" if result.printed == right else f"printed {result.printed!r}, not {right!r}"


def _slips(result: Result) -> str:
    """Judge the output of c_survivor. For failed waits see _calls_fail."""
    wrong, interrupted, lost, timer = map(int, result.printed.split())
    fits = (wrong, lost, timer) == (0, 0, 1) and interrupted <= result.kills
    return "" if fits else f"{wrong} checksums wrong, {interrupted} EINTR, {lost} signals lost, timer {timer}"


def _calls_fail(result: Result) -> str:
    """Judge failed calls: a call may fail if its thread is being stopped at a kill, because no profiler restarts it."""
    failed = {line.split()[0]: int(line.split()[2]) for line in result.printed.splitlines()}
    fits = len(failed) == len(WAITS) and sum(failed.values()) <= result.kills
    return "" if fits else f"calls failed with EINTR: {failed}, {result.kills} kills"


def _cuts_differ(result: Result) -> str:
    """Judge short calls: a call may be short and uncounted if its thread is being stopped at a kill."""
    short = shorts(result.printed).total()
    fits = result.counted <= short <= result.counted + result.kills
    return "" if fits else f"{short} calls cut short, {result.counted} counted, {result.kills} kills"


CASES = (
    Case("threads, timers, signals", ("c_survivor",), _slips),
    Case("waits", ("c_sleepers", "40", "200", *WAITS), _calls_fail),
    Case("vfork and fork", ("c_spawns", "spawn"), _prints("0\n")),
    Case("exec beside a thread", ("c_spawns", "exec"), _prints("0\n")),
    Case("SIGSTOP and SIGCONT", ("c_spin", "2"), _prints("done\n"), halts=True),
    Case("PID and user namespace", ("c_survivor",), _slips, prefix=NAMESPACES),
    Case("transfers", ("c_transfers", "0", *TRANSFERS), _cuts_differ),
)


class _Shared(Counter[str]):
    """Counters whose sum of short calls survives the process in shared memory."""

    def __init__(self, total: memoryview) -> None:
        super().__init__()
        self._total = total

    def __setitem__(self, key: str, value: int) -> None:
        if key.startswith(CUT_SHORT):
            self._total[0] += value - self.get(key, 0)
        super().__setitem__(key, value)


def profiler(pid: int, idle: bool, ready: int, cut: memoryview | None = None) -> int:
    """Fork a profiler that samples as fast as it can, and return its pid.

    Args:
        pid: Process id of the target.
        idle: Whether to sample idle threads.
        ready: Descriptor to which the profiler writes a byte once it has begun.
        cut: Shared memory with one number, to which the profiler adds the short calls that it counts.
    """
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may have been started with SIGINT ignored
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        libc.read_without_gil()  # the command line does so, too
        options = CollectOptions(rate_hz=5000, idle=idle, flush_s=0.01, subprocesses=True)
        diagnostics = Diagnostics() if cut is None else Diagnostics(_Shared(cut))
        for _ in PtraceCollector(pid, options, diagnostics).batches():
            if ready >= 0:
                os.write(ready, b"!")
                ready = -1
    finally:
        os._exit(0)


def begun(pid: int, idle: bool, cut: memoryview | None = None) -> int:
    """Return the pid of a profiler that has taken its first samples."""
    came, ready = os.pipe()
    child = profiler(pid, idle, ready, cut)
    os.close(ready)
    assert os.read(came, 1) == b"!"
    os.close(came)
    return child


def states(pid: int) -> set[str]:
    """Return the states of all existing threads of a process and its children, and assert that none is traced."""
    found: set[str] = set()
    try:
        tids = list_tasks(pid)
    except ProcessLookupError:
        return found
    for tid in tids:
        task = Path(f"/proc/{pid}/task/{tid}")
        try:
            status = (task / "status").read_text()
            children = (task / "children").read_text().split()
        except OSError:
            continue
        assert re.search(r"^TracerPid:\t0$", status, re.MULTILINE), status
        found |= set(re.findall(r"^State:\t(\w)", status, re.MULTILINE))
        for child in children:
            found |= states(int(child))
    return found


def sampled(target: Program, prefix: tuple[str, ...]) -> int:
    """Return the pid of the program, which is the started process unless there is a prefix."""
    if not prefix:
        return target.pid
    return int(Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()[0])


def kill_profilers(case: Case, target: Program, kills: int, rng: random.Random) -> Result:
    """Kill profilers repeatedly.

    Raises:
        AssertionError: A thread is left stopped or traced after a kill.
    """
    pid, halted = sampled(target, case.prefix), False
    with mmap.mmap(-1, mmap.PAGESIZE) as memory, memoryview(memory) as raw, raw.cast("Q") as cut:
        for turn in range(kills):
            child = begun(pid, idle=turn % 4 == 0, cut=cut)
            time.sleep(rng.uniform(0, 0.01))
            if case.halts:
                os.kill(pid, signal.SIGCONT if halted else signal.SIGSTOP)
                halted = not halted
                time.sleep(rng.uniform(0, 0.002))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status)
            if case.halts:
                _wait_states(pid, {"T"} if halted else RUNS)
            else:
                assert states(pid) <= RUNS
        if halted:
            os.kill(pid, signal.SIGCONT)
        return Result(target.finish(), kills, cut[0])


def _wait_states(pid: int, wanted: frozenset[str] | set[str]) -> None:
    deadline = time.monotonic() + MAX_S
    while not states(pid) <= wanted:
        assert time.monotonic() < deadline, (states(pid), wanted)
        time.sleep(0.001)
