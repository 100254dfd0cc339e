"""All code descriptions of one process: its sources, updated together.

RUNTIMES lists the managed runtimes that pyprof reads. A new managed runtime is a folder and a row there.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyprof.collectors.linux import procfs
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.jit_code_map import ALWAYS, Span
from pyprof.objfile.byte_source import GrowingFile
from pyprof.objfile.untrusted_file_access import current_opener, open_below
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan, CodeSource, ManagedRuntime, Rows, RuleAt, RuntimeKind
from pyprof.runtime_code.gdb_jit_and_libunwind_code import GdbCode, LibunwindCode
from pyprof.runtime_code.hotspot.code_cache import STUB_LIST
from pyprof.runtime_code.hotspot.java_code_source import HotspotCode
from pyprof.runtime_code.hotspot.vm_structs import SYMBOLS as HOTSPOT_SYMBOLS
from pyprof.runtime_code.perf_map_and_jitdump import JitdumpCode, PerfMapCode
from pyprof.runtime_code.v8.heap import SYMBOL_PREFIXES as V8_SYMBOLS
from pyprof.runtime_code.v8.javascript_code_source import V8Code
from pyprof.unwind.formats.gdb_jit import DESCRIPTOR
from pyprof.unwind.formats.libunwind_registrations import LIST

RUNTIMES = (
    RuntimeKind(HotspotCode, (*HOTSPOT_SYMBOLS, STUB_LIST)),
    RuntimeKind(V8Code, V8_SYMBOLS, re.compile(r"(?:node|nodejs|nsolid)[-.\d]*|libnode\.so.*")),
)
SYMBOL_PREFIXES = tuple(prefix for kind in RUNTIMES for prefix in kind.symbols)


def may_run(name: str) -> bool:
    """Return True if a file with this name may contain a managed runtime that runs functions of the program by code in
    its file, as node does.
    """
    return any(kind.programs is not None and kind.programs.fullmatch(name) for kind in RUNTIMES)


REST = 2
"""Factor that limits the cost of JIT code updates: after an update that took t, there is no quick update for REST *
t.
"""

_CLOCK_SLACK_NS = 1_000_000_000
"""Tolerance in nanoseconds for a perf map whose time of writing seems to precede the start of its process."""

MAX_TIDS = 1 << 16
"""Maximum number of threads of a process in another pid namespace whose tids in that namespace are cached."""

Spans = tuple[Span[Any] | None, ...]
"""The descriptions of a JIT code address: one for each source, in the order of ProcessCode.sources, None where a source
has none.
"""

FindSymbols = Callable[[AddressSpace, Arch], Sequence[tuple[bytes, int]]]


class ProcessCode:
    """All descriptions of the JIT code of one process, from exec to exec or exit, with the sources that they come from.

    Attributes:
        arch: Architecture of the process.
        pid: Pid of the process.
        runtimes: The managed runtimes that may run in the process. They are sources, too.
        sources: The sources of descriptions; of several that describe an address, the first names the module.
        ended_ns: CLOCK_MONOTONIC time in ns at which finish() was called, None before.
        version: Number that changes whenever unwind rules may have changed.
        changes: CLOCK_MONOTONIC times at which descriptions changed, ascending.
    """

    def __init__(
        self, space: AddressSpace, arch: Arch, options: UnwindOptions, diagnostics: Diagnostics, find: FindSymbols
    ) -> None:
        self.arch, self.pid = arch, space.pid
        self._jitdump = JitdumpCode(file_owners(space), arch, diagnostics)
        self._perf_map = PerfMapCode(perf_map_file(space), diagnostics)
        from pyprof.runtime_code.process_code import RUNTIMES  # only for processes that generate code

        self.runtimes = [kind.open(arch, diagnostics) for kind in RUNTIMES]
        self.sources: list[CodeSource] = [
            LibunwindCode(diagnostics),
            GdbCode(options.sources, diagnostics),
            *self.runtimes,
            self._jitdump,
            self._perf_map,
        ]
        self.ended_ns: int | None = None
        unwinding = {"libunwind": "libunwind_dynamic", "gdb": "gdb_jit", "jitdump": "jitdump"}
        unwinding |= {runtime.label: runtime.label for runtime in self.runtimes}
        ranks = {name: rank for rank, name in enumerate(options.sources)}
        wanted = [(ranks.get(unwinding.get(s.label, ""), -1), at) for at, s in enumerate(self.sources)]
        self._asked = [at for rank, at in sorted(wanted) if rank >= 0]
        self._find = find
        self._is_nested = file_owners(space) is not None and len(_namespace_ids(space.pid)) > 1
        self._own_tids: dict[int, int] = {}
        self._space: AddressSpace | None = None
        self._symbols: Sequence[tuple[bytes, int]] = ()
        self._looked_ns = ALWAYS
        self._rest_until_ns = 0
        self.version = 0
        self.changes: list[int] = []

    def update(self, space: AddressSpace, *, quick: bool = False, files_only: bool = False) -> None:
        """Update all descriptions of a process's JIT code.

        Args:
            space: The current address space.
            quick: The scan runs between batches of samples: read only memory, and take a list with an unchanged header
                as unchanged.
            files_only: Read only files, because the process may have ended.
        """
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
        """True if the process has registration lists of JIT code, whose changes one short read reveals."""
        return any(name in (DESCRIPTOR, LIST) for name, _ in self._symbols)

    def update_code(self) -> None:
        """Run a quick update of the descriptions of JIT code, unless the last update was so recent and long that
        updates would cost too much.
        """
        if self._space is not None and time.monotonic_ns() >= self._rest_until_ns:
            self.update(self._space, quick=True)

    @property
    def ended(self) -> bool:
        """True if the program image is known to have ended."""
        return self._space is not None and self._space.ended

    def finish(self) -> None:
        """Read the process's files about JIT code to their end and close them.

        Another process may get the pid soon, and with it files of the same names.
        """
        if self._space is not None:
            self.update(self._space, files_only=True)
        self._symbols = ()
        self._jitdump.close()
        self._perf_map.close()
        self.ended_ns = time.monotonic_ns()

    def mark(self, time_ns: int) -> tuple[int, int, int]:
        """Return a key for the descriptions of JIT code at a time. The keys of two times differ if a description may
        differ.

        Managed runtimes report new descriptions of code by `version`. Other sources may describe code later that they
        did not describe before, so that the number of their descriptions grows.
        """
        at = bisect_right(self.changes, time_ns)
        described = sum(len(source.spans) for source in self.sources if source not in self.runtimes)
        return self.version, self.changes[at - 1] if at else 0, described

    def forget(self, before_ns: int) -> None:
        """Drop descriptions of JIT code that ended before a time. The caller guarantees that no more samples from
        before that time come.
        """
        for source in self.sources:
            source.spans.forget(before_ns)

    def rows(self, pc: int, exact: bool, time_ns: int, rule_at: RuleAt) -> Rows | None:
        """Return the unwind rows for a lookup pc in JIT code from the first source that has any, or None."""
        for at in self._asked:
            source = self.sources[at]
            span = source.spans.find(pc, time_ns)
            found = source.rows(span, pc, exact, rule_at) if span is not None else None
            if found is not None:
                return found
        return None

    def spans(self, pc: int, time_ns: int) -> Spans:
        return tuple(source.spans.find(pc, time_ns) for source in self.sources)

    def spans_with(self, runtime: ManagedRuntime, span: Span[Any]) -> Spans:
        """Return the descriptions of a frame by all sources (Spans), of which only a managed runtime has one."""
        return tuple(span if source is runtime else None for source in self.sources)

    def is_read(self, spans: Spans) -> bool:
        """Return True if all names of a frame are already read, because only managed runtimes describe the frame. Other
        sources may get names later.
        """
        return all(span is None or source in self.runtimes for source, span in zip(self.sources, spans, strict=True))

    def note_threads(self, tids: Sequence[int]) -> None:
        """Find and cache the tids of sampled threads in the process's own pid namespace. A managed runtime knows its
        threads by these tids.
        """
        for tid in tids if self._is_nested else ():
            if tid not in self._own_tids:
                if len(self._own_tids) >= MAX_TIDS:
                    self._own_tids.clear()
                self._own_tids[tid] = next(reversed(_namespace_ids(tid)), 0)

    def thread_names(self) -> dict[int, str]:
        """Return the names that the program gave to its threads, by tid."""
        names = {tid: name for runtime in self.runtimes for tid, name in runtime.thread_names.items()}
        if not self._is_nested:
            return names
        return {tid: names[own] for tid, own in self._own_tids.items() if own in names}

    def is_reserved(self, avma: int) -> bool:
        """Return True if a managed runtime has reserved an address for its code."""
        return any(low <= avma < high for low, high in (runtime.reserved for runtime in self.runtimes))

    def first_spans(self, pc: int) -> Spans:
        return tuple(source.spans.first(pc) for source in self.sources)


def _namespace_ids(tid: int) -> list[int]:
    """Return the tids of a thread in all its pid namespaces, from the outermost to the innermost (NSpid). [] if the
    thread has ended.
    """
    try:
        return [int(number) for number in _status(tid).get("NSpid", "").split()]
    except (OSError, ValueError):
        return []


def file_owners(space: AddressSpace) -> frozenset[int] | None:
    """Return the user IDs whose files about JIT code are accepted as the process's, or None if the process is not one
    of this machine.
    """
    if space.files is not None or not space.root.startswith("/proc/"):
        return None
    return _users(space.pid)


def _users(pid: int) -> frozenset[int] | None:
    """Return the user IDs whose files about JIT code are trusted: those of the process, of root and of pyprof; None if
    the process has ended or is not readable.
    """
    try:
        status = _status(pid)
    except OSError:
        return None
    return frozenset({0, os.geteuid(), *map(int, status.get("Uid", "").split()[:2])})


def perf_map_file(space: AddressSpace) -> GrowingFile | None:
    """Return the perf map file of a process, which may not exist yet; None if it cannot have one."""
    return None if file_owners(space) is None else _perf_map(space.pid, space.root)


def perf_map_head(pid: int, size: int) -> bytes:
    """Return the first bytes of a live process's perf map, `size` bytes or fewer; b"" if there is none.

    Raises:
        OSError: The file system does not respond.
    """
    file = _perf_map(pid, f"/proc/{pid}/root")
    return file.read_head(size) if file is not None else b""


def _perf_map(pid: int, root: str) -> GrowingFile | None:
    """Return the perf map file of a process if it was written after the process started.

    An older perf map belongs to an earlier process: the kernel reuses pids, and perf maps are not deleted.
    """
    owners = _users(pid)
    try:
        name = _perf_map_name(pid)
    except OSError:
        return None
    if owners is None:
        return None
    try:
        since_ns = procfs.compute_start_ns(current_opener().read_status(pid, "stat")) - _CLOCK_SLACK_NS
    except OSError:
        return None
    return GrowingFile(partial(open_below, root, name, follow=False), owners, since_ns)


def _perf_map_name(pid: int) -> str:
    """Return the path of a process's perf map: in its mount namespace, with the pid in its pid namespace.

    Raises:
        OSError: The process has ended.
    """
    inner = _status(pid).get("NSpid", str(pid)).split()[-1]
    return f"/tmp/perf-{inner}.map"  # noqa: S108 - the name that perf maps have


def _status(pid: int) -> dict[str, str]:
    return procfs.parse_status(current_opener().read_status(pid, "status"))
