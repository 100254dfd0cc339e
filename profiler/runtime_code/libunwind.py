"""Code registered with libunwind's dynamic unwind-info: procedures described by directives, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.jit_code_map import CodeMap, CodeName, Span
from pyprof.model.modules import ReadMemory
from pyprof.model.reasons import problem_of
from pyprof.model.walk import Trust
from pyprof.records import dataclass, field
from pyprof.runtime_code.base import CodeScan, NoImage, Rows, RuleAt, report_problem
from pyprof.unwind.formats.libunwind.region_interpreter import NotDescribed, Procedure
from pyprof.unwind.formats.libunwind.registered_info import (
    MAX_TABLE_BYTES,
    DynInfo,
    DynList,
    DynReader,
    Head,
    RegionFormat,
)
from pyprof.unwind.formats.libunwind.registered_tables import RegionTable, count_held_bytes, open_table
from pyprof.unwind.formats.libunwind.registration_list import LIST
from pyprof.unwind.rules import FunctionRows, Rule

MAX_READS = 4
"""Maximum number of attempts to read a libunwind list that changes during the read."""

MAX_ALIASES = 8
"""Maximum length of a chain of libunwind procedures that are aliases of one another."""

MAX_TOTAL = 256 << 20
"""Maximum number of bytes of libunwind's tables that are kept of one process."""


@dataclass(eq=False)
class Registered:
    """One piece of unwind info that a process has registered with libunwind.

    Attributes:
        info: The unwind info.
        arch: The architecture.
        table: Its table, None for a procedure and for a table that cannot be used.
        size: Size of the table in bytes.
    """

    info: DynInfo
    arch: Arch
    table: RegionTable | None = None
    size: int = 0


@dataclass(eq=False)
class _List:
    """The state of one list of unwind info that libunwind has in a process.

    Attributes:
        generation: Generation of the last read, -1 to read again.
        first: Address of the first info at the last read.
        known: The infos of the last read, by address.
        usual: True if most of the infos have the field load_offset.
        broken: True if the list could not be read, which has been reported.
    """

    generation: int = -1
    first: int = -1
    known: dict[int, tuple[Head, Span[Registered] | None]] = field(default_factory=dict)
    usual: bool = True
    broken: bool = False


class LibunwindCode(NoImage):
    """libunwind's lists of registered unwind info in one process; each static copy of libunwind has one. Implements
    CodeSource.
    """

    label = "libunwind"
    in_memory = True

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.spans: CodeMap[Registered] = CodeMap()
        self._diagnostics = diagnostics
        self._lists: dict[int, _List] = {}
        self._aliases = 0
        self._loaded = 0

    def update(self, scan: CodeScan) -> bool:
        changed = False
        here = {avma for name, avma in scan.symbols if name == LIST}
        for avma in here:
            changed |= self._update_list(scan, avma)
        for avma in self._lists.keys() - here:
            for _, span in self._lists.pop(avma).known.values():
                changed = True
                self._drop(span, scan.now_ns)
        return changed

    def _update_list(self, scan: CodeScan, avma: int) -> bool:
        state = self._lists.get(avma)
        if state is None:
            state = self._lists[avma] = _List()
        reader = DynReader(scan.space.read, scan.arch)
        try:
            if reader.read_generation(avma) == (state.generation, state.first):
                return False
            found = self._read_list(reader, avma)
            first = reader.read_generation(avma)[1]
        except FormatError as error:
            if not state.broken:
                self._diagnostics.count("libunwind_list_unusable")
                report_problem(self._diagnostics, self.label, problem_of(error))
            state.broken = True
            return False
        before, state.generation, state.first = state.generation, found.generation, first
        if not found.whole:
            state.generation = -1  # read the list again at the next scan
        self._take(scan, reader, state, found, found.generation - before if before >= 0 else len(found.heads))
        return True

    def _read_list(self, reader: DynReader, avma: int) -> DynList:
        """Return libunwind's list of registered unwind info, read while it did not change.

        Raises:
            FormatError: The list cannot be read.
        """
        for _ in range(MAX_READS):
            found = reader.read_heads(avma)
            if reader.read_generation(avma)[0] == found.generation:
                break
        else:
            self._diagnostics.count("libunwind_list_changed")
            return DynList(found.generation, found.heads, False)
        if not found.whole:
            self._diagnostics.count("libunwind_list_endless")
        return found

    def _take(self, scan: CodeScan, reader: DynReader, state: _List, found: DynList, actions: int) -> None:
        """Load new and changed infos of libunwind's list, and drop those that it no longer has.

        Args:
            scan: The scan.
            reader: Reads the list.
            state: The state of the list, which is updated.
            found: The list.
            actions: Number of registrations and cancellations since the last read. New infos are at the front, so at
                most this many infos are new.
        """
        present = {head.info for head in found.heads}
        if found.whole:
            for gone in state.known.keys() - present:
                self._drop(state.known.pop(gone)[1], scan.now_ns)
        fresh: list[tuple[Head, DynInfo]] = []
        for place, head in enumerate(found.heads):
            known = state.known.get(head.info)
            if known is not None and known[0] == head and place >= actions:
                continue
            info: DynInfo | None = None
            try:
                info = reader.read_info(head, state.usual)
            except FormatError as error:
                self._diagnostics.count("libunwind_registration_unusable")
                report_problem(self._diagnostics, self.label, problem_of(error))
            if known is not None:
                if known[1] is not None and info == known[1].value.info and head.format == RegionFormat.DYNAMIC:
                    continue
                self._drop(known[1], scan.now_ns)
            state.known[head.info] = head, None
            if info is not None:
                fresh.append((head, info))
        self._vote(state, [info for _, info in fresh])
        if self._loaded > MAX_TOTAL // 2:
            self._loaded = self._held()
        spans = []
        for head, read in fresh:
            entry = read if read.sure or read.with_offset == state.usual else self._again(reader, read, state.usual)
            span = Span(head.start, head.end, self._registered(entry, scan.space.read, scan.arch), scan.before_ns)
            state.known[head.info] = head, span
            spans.append(span)
        self.spans.add_spans(
            reversed(spans), scan.before_ns, scan.now_ns
        )  # of overlapping spans, the later is found first

    def _again(self, reader: DynReader, read: DynInfo, usual: bool) -> DynInfo:
        """Read a libunwind info in the other layout. If it is no longer readable, return it as it was read first."""
        try:
            return reader.read_info(read.head, usual)
        except FormatError:
            return read

    def _vote(self, state: _List, infos: list[DynInfo]) -> None:
        """Determine the usual layout of libunwind's infos from those whose layout is certain.

        Mostly, one program has one version of the headers.
        """
        votes = Counter(info.with_offset for info in infos if info.sure)
        if votes:
            state.usual = votes[True] >= votes[False]

    def _registered(self, info: DynInfo, read: ReadMemory, arch: Arch) -> Registered:
        value = Registered(info, arch)
        if info.head.format != RegionFormat.DYNAMIC:
            try:
                most = min(MAX_TABLE_BYTES, MAX_TOTAL - self._loaded)
                value.table = open_table(info, read, arch, self._diagnostics, most)
            except FormatError as error:
                self._diagnostics.count("libunwind_table_unusable")
                report_problem(self._diagnostics, self.label, problem_of(error))
            value.size = count_held_bytes(info, value.table, arch)
            self._loaded += value.size
        return value

    def _held(self) -> int:
        """Return the number of bytes of libunwind's tables that are kept, with those that samples of the past may
        need.
        """
        return sum(value.size for value in {span.value for span in (*self.spans, *self.spans.past)})

    def _drop(self, span: Span[Registered] | None, now_ns: int) -> None:
        if span is not None:
            self.spans.remove(span, now_ns)

    def rows(self, span: Span[Registered], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        value = span.value
        try:
            if value.info.head.format != RegionFormat.DYNAMIC:
                found = value.table.function_at(pc) if value.table is not None else None
            else:
                found = self._procedure_rows(value, pc, lambda at: rule_at(at, exact))
        except FormatError as error:
            self._diagnostics.count("unwind_entry_broken:libunwind")
            report_problem(self._diagnostics, self.label, problem_of(error))
            return None
        except NotDescribed as reason:
            self._diagnostics.count(f"libunwind_region_not_described:{reason}")
            return None
        return None if found is None else (found, Trust.LIBUNWIND_DYNAMIC)

    def _procedure_rows(self, value: Registered, pc: int, rule_at: Callable[[int], Rule | None]) -> FunctionRows:
        head = value.info.head

        def alias(at: int) -> Rule | None:
            if self._aliases >= MAX_ALIASES:
                raise NotDescribed("alias of an alias without end")
            self._aliases += 1
            try:
                return rule_at(at)
            finally:
                self._aliases -= 1

        placed = Procedure(value.info.regions, head.end - head.start, value.arch, alias).rule_at(pc - head.start)
        start, end = head.start + placed.low, min(head.start + placed.high, head.end)
        return FunctionRows(start, end, (start,), (placed.rule,))

    def name(self, span: Span[Registered]) -> CodeName | None:
        name = span.value.info.name
        return CodeName(name, span.start) if name else None
