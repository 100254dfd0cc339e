"""Which processes there are, and what the rules say about each.

One look reads the list of /proc once, and the state of those processes that are new or young: a process that has just
begun may become another program. A look that fails changes nothing: what was known stays.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from pyprof.agent.rules import NOT_RECORDED, RuleVerdict, TargetRule, judge, user_name
from pyprof.collectors.linux import procfs
from pyprof.errors import FormatError
from pyprof.records import dataclass

LOOK_S = 1.0
"""Between two looks."""
_YOUNG_S = 3.0
_AGAIN_S = 30.0
"""After so long each process is looked at again: it may be another one, or run another program."""
GONE_S = 600.0
"""So long it is known what a process was called that is gone."""
_MOST_ENVIRONMENT = 1 << 16
_UNIT = re.compile(r"([^/]+\.(?:service|scope|socket|mount|swap|slice))(?:/|$)")
_CONTAINER = re.compile(r"(?:^|[/:_.-])([0-9a-f]{64})(?:[/.]|$)")
_TICKS = os.sysconf("SC_CLK_TCK")


class Facts:
    """What is known of a process, asked for when a rule needs it; "" for what is not known."""

    def __init__(self, pid: int, comm: str, ppid: int) -> None:
        self._pid, self._known = pid, {"pid": str(pid), "name": comm, "ppid": str(ppid)}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> str:
        pid = self._pid
        if name.startswith("env:"):
            return _variable(pid, name.removeprefix("env:"))
        if name == "exe":
            return _known(procfs.exe(pid))
        if name == "cmdline":
            return procfs.command_line(pid)
        if name == "parent":
            return _known(procfs.name(int(self("ppid"))))
        if name == "user":
            return _user(pid)
        cgroup = self("cgroup") if name != "cgroup" else _cgroup(pid)
        if name == "unit":
            units = [unit for unit in _UNIT.findall(cgroup) if not unit.endswith(".slice")]
            return str(units[-1]) if units else ""
        if name == "container":
            found = _CONTAINER.findall(cgroup)
            return str(found[-1])[:12] if found else ""
        return cgroup if name == "cgroup" else ""


def _known(text: str) -> str:
    return "" if text == "?" else text


def _cgroup(pid: int) -> str:
    """Of the unified hierarchy, else of systemd's or the first."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            lines = [line.split(":", 2) for line in os.fsdecode(file.read(_MOST_ENVIRONMENT)).splitlines()]
    except OSError:
        return ""
    paths = {parts[1]: parts[2] for parts in lines if len(parts) == 3}
    return paths.get("") or paths.get("name=systemd") or next(iter(paths.values()), "")


def _variable(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(_MOST_ENVIRONMENT)
    except OSError:
        return ""
    begin = os.fsencode(name) + b"="
    return next((os.fsdecode(each[len(begin) :]) for each in text.split(b"\0") if each.startswith(begin)), "")


def _user(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Seen:
    """start: clock ticks since boot. at: monotonic s of the look. young: it had just begun then."""

    start: int
    comm: str
    at: float
    young: bool
    verdict: RuleVerdict


class ProcessTable:
    """by_pid: of the last look that succeeded. failed: looks that did not. own: this process, which is not recorded,
    nor what it starts.
    """

    def __init__(self, rules: Sequence[TargetRule], own: int) -> None:
        self.by_pid: dict[int, Seen] = {}
        self.failed = 0
        self._rules = rules
        self._own = own
        self._ours = {own}
        self._gone: dict[int, tuple[float, RuleVerdict]] = {}
        self._next = 0.0

    def look(self) -> dict[int, Seen]:
        """From any thread; at most one look in LOOK_S."""
        now = time.monotonic()
        if now < self._next:
            return self.by_pid
        self._next = now + LOOK_S
        try:
            uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
            found = {pid: seen for pid in procfs.all_pids() if (seen := self._seen(pid, now, uptime)) is not None}
        except OSError:
            self.failed += 1
            return self.by_pid
        gone = {pid: (now, self.by_pid[pid].verdict) for pid in self.by_pid.keys() - found.keys()}
        self._gone = {pid: known for pid, known in (self._gone | gone).items() if now < known[0] + GONE_S}
        self._ours &= found.keys() | {self._own}
        self.by_pid = found
        return found

    def _seen(self, pid: int, now: float, uptime: float) -> Seen | None:
        """None: it is gone. Raises OSError where that is not known."""
        known = self.by_pid.get(pid)
        if known is not None and not known.young and now - known.at < _AGAIN_S:
            return known
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                stat = procfs.parse_stat(file.read())
        except (FileNotFoundError, ProcessLookupError, FormatError):
            return None
        if stat.is_zombie:
            return None
        if stat.ppid in self._ours:
            self._ours.add(pid)
        if stat.is_kernel_thread or pid in self._ours:
            return Seen(stat.start, stat.comm, now, False, NOT_RECORDED)
        young = uptime - stat.start / _TICKS < _YOUNG_S
        if known is not None and (known.start, known.comm) == (stat.start, stat.comm) and not known.young:
            return Seen(stat.start, stat.comm, now, young, known.verdict)
        return Seen(stat.start, stat.comm, now, young, judge(self._rules, Facts(pid, stat.comm, stat.ppid)))

    def verdict(self, pid: int) -> RuleVerdict:
        """Also of a process that ended not long ago."""
        seen = self.by_pid.get(pid)
        if seen is not None and seen.verdict.service:
            return seen.verdict
        return self._gone[pid][1] if pid in self._gone else NOT_RECORDED
