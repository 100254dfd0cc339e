"""Everything that one process says about the code that it makes: the sources of descriptions, looked at together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyprof.collectors.linux import procfs
from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import Arch
from pyprof.model.code import ALWAYS, Span
from pyprof.model.modules import AddressSpace
from pyprof.objfile.growing_file import GrowingFile
from pyprof.objfile.opener import below, current
from pyprof.options import UnwindOptions
from pyprof.runtime_code.base import CodeScan, CodeSource, Rows, RuleAt
from pyprof.runtime_code.gdb_jit import GdbCode
from pyprof.runtime_code.jitdump import JitdumpCode
from pyprof.runtime_code.libunwind import LibunwindCode
from pyprof.runtime_code.perf_map import PerfMapCode

REST = 2
"""After a look that took t there is none in between for REST * t."""

_CLOCK_SLACK_NS = 1_000_000_000
"""How far the times of a process's start and of its first write may be apart the wrong way round."""

Spans = tuple[Span[Any] | None, ...]
"""What each source says, in the order of ProcessCode.sources."""

FindSymbols = Callable[[AddressSpace, Arch], Sequence[tuple[bytes, int]]]


class ProcessCode:
    """What one program image of a process says.

    sources: in the order in which they are asked for rules, and for the module's name. ended_ns: when it was finished,
    None before.
    """

    def __init__(
        self, space: AddressSpace, arch: Arch, options: UnwindOptions, diagnostics: Diagnostics, find: FindSymbols
    ) -> None:
        self.arch = arch
        self._jitdump = JitdumpCode(file_owners(space), arch, diagnostics)
        self._perf_map = PerfMapCode(perf_map_file(space), diagnostics)
        self.sources: list[CodeSource] = [
            LibunwindCode(diagnostics),
            GdbCode(options.sources, diagnostics),
            self._jitdump,
            self._perf_map,
        ]
        self.ended_ns: int | None = None
        unwinding = {"libunwind": "libunwind_dynamic", "gdb": "gdb_jit", "jitdump": "jitdump"}
        ranks = {name: rank for rank, name in enumerate(options.sources)}
        wanted = [(ranks.get(unwinding.get(s.label, ""), -1), at) for at, s in enumerate(self.sources)]
        self._asked = [at for rank, at in sorted(wanted) if rank >= 0]
        self._find = find
        self._space: AddressSpace | None = None
        self._symbols: Sequence[tuple[bytes, int]] = ()
        self._looked_ns = ALWAYS
        self._rest_until_ns = 0
        self.version = 0
        self.changes: list[int] = []

    def update(self, space: AddressSpace, *, quick: bool = False, files_only: bool = False) -> None:
        """Look at all sources. quick: see CodeScan. files_only: the process may have ended, its files are there."""
        if self.ended_ns is not None:
            return
        files_only = files_only or space.ended
        if self._space is not space:
            if self._space is None or self._space.generation <= space.generation:
                self._symbols = self._find(space, self.arch)
            self._space = space
        now = time.monotonic_ns()
        scan = CodeScan(space, self.arch, self._looked_ns, now, self._symbols, quick)
        for source in self.sources:
            if not (source.in_memory and files_only) and not (quick and not source.in_memory):
                self.version += source.update(scan)
        self._looked_ns = now
        after = time.monotonic_ns()
        self._rest_until_ns = after + REST * (after - now)
        known = {len(source.spans.changes) and source.spans.changes[-1] for source in self.sources}
        if max(known) > (self.changes[-1] if self.changes else 0):
            self.changes = sorted({at for source in self.sources for at in source.spans.changes})

    @property
    def watched(self) -> bool:
        """It has lists whose change can be seen by one short read."""
        return bool(self._symbols)

    def look(self) -> None:
        """See what is registered now, in between; not if that took too long the last time."""
        if self._space is not None and time.monotonic_ns() >= self._rest_until_ns:
            self.update(self._space, quick=True)

    @property
    def ended(self) -> bool:
        """Is the program image known to be gone?"""
        return self._space is not None and self._space.ended

    def finish(self) -> None:
        """Read the files to their end and close them: the pid may be another process's soon, and files of its name."""
        if self._space is not None:
            self.update(self._space, files_only=True)
        self._symbols = ()
        self._jitdump.close()
        self._perf_map.close()
        self.ended_ns = time.monotonic_ns()

    def forget(self, before_ns: int) -> None:
        """Drop descriptions that ended before a time: no sample of then is walked any more."""
        for source in self.sources:
            source.spans.forget(before_ns)

    def rows(self, pc: int, exact: bool, time_ns: int, rule_at: RuleAt) -> Rows | None:
        """By the first source that has rows for a lookup pc."""
        for at in self._asked:
            source = self.sources[at]
            span = source.spans.find(pc, time_ns)
            found = source.rows(span, pc, exact, rule_at) if span is not None else None
            if found is not None:
                return found
        return None

    def spans(self, pc: int, time_ns: int) -> Spans:
        return tuple(source.spans.find(pc, time_ns) for source in self.sources)

    def first_spans(self, pc: int) -> Spans:
        return tuple(source.spans.first(pc) for source in self.sources)


def file_owners(space: AddressSpace) -> frozenset[int] | None:
    """Users whose files count as the process's; None where it is no process of this machine."""
    if space.files is not None or not space.root.startswith("/proc/"):
        return None
    return _users(space.pid)


def _users(pid: int) -> frozenset[int] | None:
    """Those of a process, root and our own; None where it has ended or may not be read."""
    try:
        status = _status(pid)
    except OSError:
        return None
    return frozenset({0, os.geteuid(), *map(int, status.get("Uid", "").split()[:2])})


def perf_map_file(space: AddressSpace) -> GrowingFile | None:
    """The process's perf map, None where there can be none."""
    return None if file_owners(space) is None else _perf_map(space.pid, space.root)


def perf_map_head(pid: int, size: int) -> bytes:
    """The first bytes of a live process's perf map, at most size; b"" if there is none. Raises OSError."""
    file = _perf_map(pid, f"/proc/{pid}/root")
    return file.head(size) if file is not None else b""


def _perf_map(pid: int, root: str) -> GrowingFile | None:
    """The file of its name that was written since the process began: pids are used again, and maps stay behind."""
    owners = _users(pid)
    try:
        name = _perf_map_name(pid)
    except OSError:
        return None
    if owners is None:
        return None
    try:
        since_ns = procfs.began_ns(current().about(pid, "stat")) - _CLOCK_SLACK_NS
    except OSError:
        return None
    return GrowingFile(partial(below, root, name, follow=False), owners, since_ns)


def _perf_map_name(pid: int) -> str:
    """As the process names it: in its mount namespace, by its pid in its own namespace. Raises OSError."""
    inner = _status(pid).get("NSpid", str(pid)).split()[-1]
    return f"/tmp/perf-{inner}.map"


def _status(pid: int) -> dict[str, str]:
    return procfs.parse_status(current().about(pid, "status"))
