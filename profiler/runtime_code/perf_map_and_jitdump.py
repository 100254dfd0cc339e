"""Names, lines and unwind tables from a process's jitdump file, and names from its perf map, read while they grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import Arch
from pyprof.model.jit_code_map import CodeMap, CodeName, CodeTable, NamedRanges, Span
from pyprof.model.loss_reason_texts import problem, problem_of
from pyprof.model.unwind_result import Trust
from pyprof.objfile import io_deadline
from pyprof.objfile.byte_source import ContentReservation, GrowingFile
from pyprof.objfile.jitdump import JitdumpClosed, JitdumpReader, Loaded, Record
from pyprof.objfile.mapped_object_files import SILENT
from pyprof.objfile.untrusted_file_access import current_opener, open_below
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.runtime_code.base import CodeScan, NoImage, Rows, RuleAt, report_problem
from pyprof.symbolize.perf_map import PerfMapReader
from pyprof.unwind.formats.cfi_cie_and_fde import CfiSection
from pyprof.unwind.formats.cfi_sections import CfiTable
from pyprof.unwind.formats.libunwind_registrations import shift_rows

LINE_BYTES = 30
"""Estimate of the memory in bytes that a line of a perf map takes in addition to its name."""


class PerfMapCode(NoImage):
    """The perf map of one process. Implements CodeSource. Processes of a core file or of another machine have no perf
    map.
    """

    label = "perf map"
    in_memory = False

    def __init__(self, file: GrowingFile | None, diagnostics: Diagnostics) -> None:
        self.spans = CodeTable()
        self._file = file
        self._diagnostics = diagnostics
        self._reader = PerfMapReader(diagnostics)
        self._held = ContentReservation("perf map")
        self._next = b"", False

    def update(self, scan: CodeScan) -> bool:
        """Read the lines that were appended to the perf map. Always returns False, because a perf map has no unwind
        rules.
        """
        if self._file is None:
            return False
        data, anew = self._file.read_appended()
        if self._file.silent:
            self._diagnostics.count(SILENT)
            report_problem(self._diagnostics, self.label, problem("perf_map_silent"))
            self.close()
        while self._file is not None and (data or anew):
            self._next = b"", False
            self.spans.add_reading(self._lines(self._file, data, anew), scan.before_ns, scan.now_ns, anew)
            data, anew = self._next
        return False

    def _lines(self, file: GrowingFile, data: bytes, anew: bool) -> Iterator[NamedRanges]:
        """Yield the names of a perf map in pieces up to the end of the file, or until another file replaces it.

        The first bytes of a replacing file are kept for update().
        """
        if anew:
            self._reader.restart()
        while data:
            piece = self._reader.read(data)
            try:
                self._held.count_bytes(len(piece.names) + LINE_BYTES * len(piece.start))
            except FormatError as error:
                self._leave(problem_of(error))
                return
            yield piece
            data, anew = file.read_appended()
            if anew:
                self._next = data, anew
                return
        if file.cut:
            self._leave(problem("code_file_too_large"))

    def _leave(self, why: Problem) -> None:
        """Stop reading the perf map of a process, and report the reason as a problem."""
        self._diagnostics.count("perf_map_too_large")
        report_problem(self._diagnostics, self.label, why)
        self.close()

    def close(self) -> None:
        """Close the perf map and read no more."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def rows(self, span: Span[str], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        return None

    def name(self, span: Span[str]) -> CodeName:
        return CodeName(span.value, span.start)


FILE = re.compile(r"(?:^|/)jit-\d+\.dump$")
"""Pattern of the file names of jitdumps. A process marks its jitdump by an executable mapping of the file, as perf
expects.
"""


@dataclass(eq=False)
class JitCode:
    """A piece of code that a jitdump describes, with its later moves.

    Attributes:
        loaded: The record that loaded the code.
        shift: Distance in bytes by which the code was moved since then.
        table: Unwind table of the code, opened at the first lookup.
    """

    loaded: Loaded
    shift: int = 0
    table: CfiTable | None = None


class JitdumpCode(NoImage):
    """The jitdump files of one process. Implements CodeSource."""

    label = "jitdump"
    in_memory = False

    def __init__(self, owners: frozenset[int] | None, arch: Arch, diagnostics: Diagnostics) -> None:
        self.spans: CodeMap[JitCode] = CodeMap()
        self._owners = owners
        self._arch = arch
        self._diagnostics = diagnostics
        self._files: dict[str, tuple[GrowingFile, JitdumpReader]] = {}
        self._broken: set[str] = set()

    def update(self, scan: CodeScan) -> bool:
        if self._owners is None:
            return False
        changed = False
        for mapping in jitdump_mappings(scan.space):
            if mapping.path not in self._files:
                file = open_mapped(scan.space, mapping, self._owners)
                if file is not None:
                    self._files[mapping.path] = file, JitdumpReader()
        for path, (file, _) in self._files.items():
            changed |= self._read_on(scan, path, file)
        return changed

    def _read_on(self, scan: CodeScan, path: str, file: GrowingFile) -> bool:
        """Read the records that were appended to a jitdump file, and return True if there were any."""
        changed = False
        data, anew = file.read_appended()
        while data or anew:
            if anew:
                self._files[path] = file, JitdumpReader()
                self._broken.discard(path)
            if path in self._broken:
                break
            changed |= bool(data) and self._read(scan, path, self._files[path][1], data)
            data, anew = file.read_appended()
        if file.cut and path not in self._broken:
            self._broken.add(path)
            self._diagnostics.count("jitdump_too_large")
            report_problem(self._diagnostics, self.label, problem("code_file_too_large"))
        return changed

    def close(self) -> None:
        """Close the jitdump files and read no more."""
        for file, _ in self._files.values():
            file.close()
        self._files.clear()
        self._owners = None

    def _read(self, scan: CodeScan, path: str, reader: JitdumpReader, data: bytes) -> bool:
        try:
            records = reader.read(data)
        except FormatError as error:
            self._broken.add(path)
            self._diagnostics.count("jitdump_broken")
            report_problem(self._diagnostics, self.label, problem_of(error))
            return False
        for record in records:
            self._take(scan, record)
        return bool(records)

    def _take(self, scan: CodeScan, record: Record) -> None:
        if isinstance(record, JitdumpClosed):
            return  # the process may still run code that it generated before
        before, now = scan.before_ns, scan.now_ns
        if record.time_ns is not None:
            before, now = record.time_ns - 1, record.time_ns
        if isinstance(record, Loaded):
            span = Span(record.start, record.start + record.size, JitCode(record))
        else:
            old = self.spans.find(record.old_start, now - 1)
            if old is None:
                self._diagnostics.count("jitdump_move_unknown")
                return
            self.spans.remove(old, now)
            value = JitCode(old.value.loaded, old.value.shift + record.new_start - record.old_start)
            span = Span(record.new_start, record.new_start + record.size, value, before)
        self.spans.add_spans([span], before, now)

    def rows(self, span: Span[JitCode], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        value = span.value
        loaded = value.loaded
        tables = loaded.tables
        if not tables.eh_frame:
            return None
        try:
            if value.table is None:
                data, arch = memoryview(tables.eh_frame), self._arch
                place = tables.assumed_address(loaded.start, loaded.size)
                section = CfiSection(".eh_frame", data, place, True, arch.byteorder, arch.word)
                value.table = CfiTable(section, arch, self._diagnostics, stop_at_terminator=True)
            svma = pc - value.shift
            found = value.table.rows_at(value.table.find(svma), svma)
        except FormatError as error:
            self._diagnostics.count("jitdump_table_broken")
            report_problem(self._diagnostics, self.label, problem_of(error))
            return None
        return None if found is None else (shift_rows(found, value.shift), Trust.JITDUMP)

    def name(self, span: Span[JitCode]) -> CodeName:
        loaded, shift = span.value.loaded, span.value.shift
        lines = tuple((avma + shift, file, line) for avma, file, line in loaded.lines)
        return CodeName(loaded.name, span.start, lines)


def jitdump_mappings(space: AddressSpace) -> list[Mapping]:
    return [m for m in space.mappings if m.executable and m.inode and FILE.search(m.path)]


def open_mapped(space: AddressSpace, mapping: Mapping, owners: frozenset[int]) -> GrowingFile | None:
    """Return the jitdump file that a process has mapped, or None if no name leads to it. Tried are the path below the
    process's root, the kernel's handle of the mapping, and the plain path.
    """
    ways = (
        partial(open_below, space.root, mapping.path),
        partial(current_opener().open_mapped, space.pid, mapping.start, mapping.end),
        partial(open_below, "", mapping.path),
    )
    for find in ways:
        try:
            found = find()
        except OSError:
            continue
        inode = io_deadline.stat_descriptor(found).st_ino
        io_deadline.close_descriptor(found)
        if inode == mapping.inode:
            return GrowingFile(find, owners)
    return None
