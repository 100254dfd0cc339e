"""The agent's own processor time and memory, including its workers."""

from __future__ import annotations

import os
import time

from pyprof.collectors.linux.children import find_descendants

_TICKS = os.sysconf("SC_CLK_TCK")
_FIELDS = slice(11, 15)
"""Fields of /proc/PID/stat after the name that state processor time: utime, stime, and those of waited-for children."""


class OwnCpu:
    """Processor time of the agent; percent() returns the share of one processor since its last call."""

    def __init__(self) -> None:
        self._at, self._spent_s = time.monotonic(), spent()

    def percent(self) -> float:
        now, spent_s = time.monotonic(), spent()
        share = max(spent_s - self._spent_s, 0.0) / max(now - self._at, 1e-3)
        self._at, self._spent_s = now, spent_s
        return round(100 * share, 2)


def spent(agent: int | None = None) -> float:
    """Return the seconds of processor time that the agent has used so far, including its ended processes.

    Args:
        agent: Pid of the agent, None for this process.
    """
    return sum(map(_of, _processes(agent))) / _TICKS


def _processes(agent: int | None) -> tuple[int, ...]:
    pid = os.getpid() if agent is None else agent
    return pid, *find_descendants([pid])


def _of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[_FIELDS]))
    except (OSError, IndexError, ValueError):
        return 0


def memory(agent: int | None = None) -> int | None:
    """Return the memory of the agent in bytes, shared memory only once (Pss); None if the kernel does not state it.

    Args:
        agent: See spent().
    """
    found = [_pss_kb(pid) for pid in _processes(agent)]
    return None if found[0] is None else sum(kb or 0 for kb in found) << 10


def _pss_kb(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration, IndexError, ValueError):
        return None
