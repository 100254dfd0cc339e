"""Code that a process registers in its memory: with the GDB JIT interface, or with libunwind.

The GDB JIT interface has object files in the target's memory, with tables, symbols and lines. libunwind's dynamic
unwind-info has procedures described by directives, and tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace, Module, ReadMemory
from pyprof.model.arch import Arch
from pyprof.model.jit_code_map import CodeMap, CodeName, Span
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.mapped_object_files import Image
from pyprof.objfile.object_file_opening import open_memory_object
from pyprof.objfile.target_memory_structs import TargetStructs
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan, NoImage, Rows, RuleAt, module_path, report_problem
from pyprof.unwind.formats.gdb_jit import (
    DESCRIPTOR,
    JitEntry,
    JitList,
    read_descriptor,
    read_entry,
    read_list,
    read_object,
)
from pyprof.unwind.formats.libunwind_regions import NotDescribed, Procedure
from pyprof.unwind.formats.libunwind_registrations import (
    LIST,
    MAX_TABLE_BYTES,
    DynInfo,
    DynList,
    DynReader,
    Head,
    RegionFormat,
    RegionTable,
    count_held_bytes,
    open_table,
)
from pyprof.unwind.module_unwind_sources import open_sources
from pyprof.unwind.rule_lookup import FileTables
from pyprof.unwind.rules import FunctionRows, Rule

MAX_READS = 4
"""Maximum number of attempts to read a list of the GDB JIT interface that changes during the read."""

SHORT_LIST = 64
"""Maximum length of a GDB JIT list that is always read to its end. A longer list may count as unchanged if its
descriptor is unchanged (see REST).
"""

REST = 50
"""Factor that limits the cost of reading a GDB JIT list: a list that took t to read is not read again for REST * t
while its descriptor is unchanged.
"""

MARK_BYTES = 1 << 16

MAX_TOTAL = 256 << 20
MAX_OBJECTS = 1 << 14


@dataclass(eq=False)
class MemoryObject:
    """One object file that is registered with the GDB JIT interface; its size is in bytes."""

    file: ObjectFile
    arch: Arch
    size: int
    tables: FileTables
    image: Image | None = None


@dataclass(eq=False)
class _Known:
    entry: JitEntry
    mark: bytes
    spans: list[Span[MemoryObject]] = field(default_factory=list)


class GdbCode:
    """The GDB JIT interface of one process. Implements CodeSource."""

    label = "gdb"
    in_memory = True

    def __init__(self, unwind_sources: Sequence[str], diagnostics: Diagnostics) -> None:
        """Create a reader of one process's GDB JIT interface, from the names of the unwind tables to read in registered
        object files and the counters of the recording.
        """
        self.spans: CodeMap[MemoryObject] = CodeMap()
        self._names = unwind_sources
        self._diagnostics = diagnostics
        self._descriptors: dict[int, tuple[bytes, int]] = {}
        self._known: dict[tuple[int, int], _Known] = {}
        self._relevant: dict[int, int] = {}
        self._loaded = 0

    def update(self, scan: CodeScan) -> bool:
        changed = False
        here = {avma for name, avma in scan.symbols if name == DESCRIPTOR}
        for avma in here:
            changed |= self._update_list(scan, avma)
        for key in [key for key in self._known if key[0] not in here]:
            self._forget(key, scan.now_ns)
            changed = True
        return changed

    def _update_list(self, scan: CodeScan, avma: int) -> bool:
        read = scan.space.read
        last, rest_until = self._descriptors.get(avma, (b"", 0))
        try:
            settled = (scan.quick or scan.now_ns < rest_until) and read_descriptor(read, scan.arch, avma) == last
            if settled and not self._replaced(scan, avma):
                return False
            found = self._read_list(scan, avma)
        except FormatError as error:
            if last != b"broken":
                self._diagnostics.count("gdb_jit_descriptor_unusable")
                report_problem(self._diagnostics, self.label, problem_of(error))
            self._descriptors[avma] = (b"broken", 0)
            return False
        rest = REST * len(found.entries) * 20_000 if len(found.entries) > SHORT_LIST else 0
        self._descriptors[avma] = (found.descriptor, scan.now_ns + rest)
        self._relevant[avma] = found.relevant
        return self._take(scan, avma, found)

    def _replaced(self, scan: CodeScan, avma: int) -> bool:
        """Return True if the entry that was registered last with the GDB JIT interface now has another object file than
        at the last scan.

        Freed memory is soon reused for the next object file, and then the interface's descriptor has the same content.
        """
        known = self._known.get((avma, self._relevant.get(avma, 0)))
        if known is None:
            return False
        try:
            _, entry = read_entry(scan.space.read, scan.arch, known.entry.entry)
        except FormatError:
            return True
        return entry != known.entry or known.mark != self._mark(scan, entry)

    def _mark(self, scan: CodeScan, entry: JitEntry) -> bytes:
        """Return a hash that distinguishes object files which a process registers at the same address, without reading
        all of a large object file.
        """
        from _blake2 import blake2b  # hashlib loads OpenSSL

        structs, half = TargetStructs(scan.space.read, scan.arch, self.label, MARK_BYTES), MARK_BYTES // 2
        if entry.size <= MARK_BYTES:
            return blake2b(structs.read_available(entry.address, entry.size), digest_size=16).digest()
        data = structs.read_available(entry.address, half) + structs.read_available(
            entry.address + entry.size - half, half
        )
        return blake2b(data, digest_size=16).digest()

    def _read_list(self, scan: CodeScan, avma: int) -> JitList:
        """Return the list of the GDB JIT interface, read while it did not change.

        Raises:
            FormatError: The list cannot be read.
        """
        for _ in range(MAX_READS):
            found = read_list(scan.space.read, scan.arch, avma)
            if read_descriptor(scan.space.read, scan.arch, avma) == found.descriptor:
                break
        else:
            self._diagnostics.count("gdb_jit_list_changed")
            return JitList(found.descriptor, found.relevant, found.entries, False)
        if not found.whole:
            self._diagnostics.count("gdb_jit_list_endless")
        return found

    def _take(self, scan: CodeScan, avma: int, found: JitList) -> bool:
        """Load new and changed object files of the GDB JIT list, and drop those that the list no longer has."""
        changed = False
        present = set()
        for entry in found.entries:
            key = (avma, entry.entry)
            present.add(key)
            known = self._known.get(key)
            again = known is None or known.entry != entry
            if again or (entry.entry == found.relevant and self._replaced(scan, avma)):
                changed |= self._load(scan, key, entry)
        if found.whole:
            for key in [key for key in self._known if key[0] == avma and key not in present]:
                self._forget(key, scan.now_ns)
                changed = True
        return changed

    def _load(self, scan: CodeScan, key: tuple[int, int], entry: JitEntry) -> bool:
        try:
            if self._loaded + entry.size > MAX_TOTAL:
                self._loaded = self._held()
            if len(self._known) >= MAX_OBJECTS or self._loaded + entry.size > MAX_TOTAL:
                raise FormatError(self.label, entry.entry, "more object files than are read")
            data = read_object(scan.space.read, scan.arch, entry)
            self._forget(key, scan.now_ns)
            file = open_memory_object(data, module_path(self.label))
        except FormatError as error:
            self._diagnostics.count("gdb_jit_file_unusable")
            report_problem(self._diagnostics, self.label, problem_of(error))
            self._forget(key, scan.now_ns)
            self._known[key] = _Known(entry, self._mark(scan, entry))
            return True
        sources = open_sources(file, scan.arch, self._names, self._diagnostics)
        value = MemoryObject(file, scan.arch, len(data), FileTables(file.name, sources, self._diagnostics, lambda: ()))
        spans = [Span(start, end, value, scan.before_ns) for start, end in code_ranges(file)]
        self.spans.add_spans(spans, scan.before_ns, scan.now_ns)
        self._known[key] = _Known(entry, self._mark(scan, entry), spans)
        self._loaded += entry.size
        return True

    def _held(self) -> int:
        """Return the number of bytes of registered object files that pyprof keeps in memory, including those that only
        earlier samples may need.
        """
        return sum(value.size for value in {span.value for span in (*self.spans, *self.spans.past)})

    def _forget(self, key: tuple[int, int], now_ns: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            for span in known.spans:
                self.spans.remove(span, now_ns)

    def rows(self, span: Span[MemoryObject], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        found = span.value.tables.function(pc, exact)
        return None if found is None else (found[0], Trust.GDB_JIT)

    def name(self, span: Span[MemoryObject]) -> CodeName | None:
        return None

    def image(self, span: Span[MemoryObject], space: AddressSpace) -> Image | None:
        value = span.value
        if value.image is None:
            mapping = space.mapping_at(span.start)
            start, end = (mapping.start, mapping.end) if mapping else (span.start, span.end)
            mappings = (mapping,) if mapping else ()
            module = Module(start, end, module_path(self.label), "00:00", 0, False, mappings)
            value.image = Image(module, value.file, 0, from_memory=True)
        return value.image


def code_ranges(file: ObjectFile) -> list[tuple[int, int]]:
    """Return the (start, end) addresses of an object file's code, ascending."""
    found = [(s.addr, s.addr + s.size) for s in file.section_list if s.executable and s.addr and 0 < s.size < 1 << 40]
    if not file.section_list:
        found = [(s.vaddr, s.vaddr + s.memsz) for s in file.loads if s.executable]
    return sorted(found)


MAX_ALIASES = 8
"""Maximum length of a chain of libunwind procedures that are aliases of one another."""


@dataclass(eq=False)
class Registered:
    """One piece of unwind info that a process has registered with libunwind.

    Attributes:
        info: The unwind info.
        arch: The architecture.
        table: The unwind table, None for a procedure and for a table that cannot be used.
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
        """Load new and changed infos of libunwind's list, and drop those that the list no longer has.

        Args:
            scan: The scan.
            reader: The reader of the list.
            state: The state of the list, which is updated.
            found: The list as it was read.
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
        """Read a libunwind info again by one of its two possible layouts: with the field load_offset if `usual` is
        True.

        Return the info unchanged if it cannot be read by that layout.
        """
        try:
            return reader.read_info(read.head, usual)
        except FormatError:
            return read

    def _vote(self, state: _List, infos: list[DynInfo]) -> None:
        """Determine which layout libunwind's infos have in this process, by those infos whose layout is certain.

        Usually a program is built with one version of libunwind's headers.
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
        """Return the number of bytes of registered libunwind tables that pyprof keeps in memory, including those that
        only earlier samples may need.
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
