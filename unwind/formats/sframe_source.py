"""An SFrame section, V1 to V3, as an unwind source.

The index is loaded once, and a function's rows are read when a pc first needs them. A section of a file and one in a
process's memory are read in the same way. The object file finds the section, and sframe_decoder.py decodes it.
docs/unwind-tables.md describes what SFrame cannot express, and where its producers are less exact than .eh_frame.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.sframe_decoder import (
    AARCH64_BIG,
    AARCH64_LITTLE,
    AMD64_LITTLE,
    FLAG_FRAME_POINTER,
    S390X_BIG,
    RowReader,
    SFrameIndex,
    read_index,
)
from pyprof.unwind.rules import Extents, FunctionRows, Rule

ABI_ARCH = {AARCH64_BIG: "aarch64", AARCH64_LITTLE: "aarch64", AMD64_LITTLE: "x86_64", S390X_BIG: "s390x"}
"""Beginning of the architecture's name for each of SFrame's ABI numbers."""

INFO_PCMASK, INFO_KEY_B, INFO_SIGNAL = 0x10, 0x20, 0x80
TYPE_DEFAULT, TYPE_FLEX = 0, 1


@dataclass(frozen=True, slots=True)
class FunctionEntry:
    """One SFrame FDE as the index states it, without its rows.

    Attributes:
        start: File address (svma) of the function.
        size: Size in bytes.
        count: Number of rows.
        repeat: Block size in bytes of a PCMASK function, else 0.
        signal: The function is a signal trampoline.
        flex: The rows have the type FLEX.
        pauth_key: "a" or "b", the key that signs return addresses.
    """

    start: int
    size: int
    count: int
    repeat: int
    signal: bool
    flex: bool
    pauth_key: str


class SFrame:
    """One .sframe section as an unwind source.

    Attributes:
        version: 1 to 3.
        exact: True if the rows hold at every instruction. Before V3 they do not in PLTs, nor where the producer dropped
            rows that the format could not express (docs/unwind-tables.md).
        frame_pointers: The producer promises that all functions of the object keep the frame pointer
            (SFRAME_F_FRAME_POINTER), so that code without an FDE may be unwound by it.
    """

    name = "sframe"
    trust = Trust.SFRAME

    def __init__(self, data: memoryview, svma: int, arch: Arch, diagnostics: Diagnostics, section: str, file: str):
        """Read the index of an SFrame section. The arguments are those of read_sframe().

        Raises:
            FormatError: The header or the extent of the index is broken.
        """
        self.index: SFrameIndex = read_index(data, svma, section)
        if not arch.name.startswith(ABI_ARCH[self.index.abi]) or arch.byteorder != self.index.byteorder:
            raise FormatError(section, 4, f"abi {self.index.abi} is not that of {arch.name}")
        self.version = self.index.version
        self.exact = self.version >= 3
        self.frame_pointers = self.version < 3 and bool(self.index.flags & FLAG_FRAME_POINTER)
        self._data = bytes(data[: self.index.rows_end])
        self._sp = arch.sp
        self._section = section
        self._file = file
        self._diagnostics = diagnostics
        self._reader = RowReader(self.index, arch, section)
        for oddity in self.index.oddities:
            diagnostics.count(oddity)

    def __len__(self) -> int:
        """Return the number of functions in the SFrame index, with those without rows."""
        return len(self.index)

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the SFrame rows of the function that covers a file address, or None if no row covers it.

        Raises:
            FormatError: The function's rows are broken.
        """
        if not 0 <= svma < 1 << 64:
            return None
        i = int(np.searchsorted(self.index.start, np.uint64(svma), side="right")) - 1
        if i < 0 or svma - int(self.index.start[i]) >= int(self.index.size[i]):
            return None
        rows = self.function(i)
        if rows is None:
            return None
        offset = svma - rows.start
        if rows.repeat:
            offset %= rows.repeat
        return rows if rows.starts[0] - rows.start <= offset else None

    def extents(self) -> Extents:
        order = np.argsort(self.index.start, kind="stable")
        start = self.index.start[order]
        return start, start + self.index.size[order].astype(np.uint64)

    def functions(self) -> Iterator[FunctionRows]:
        """Yield all functions that have rows in the SFrame section, ascending by start.

        A function with broken rows is counted and reported as a problem of the file.
        """
        budget = len(self._data)  # functions must not share rows, so that the work stays linear in the section's size
        for i in range(len(self.index)):
            budget -= int(self.index.count[i])
            try:
                if budget < 0:
                    raise FormatError(self._section, int(self.index.entry_at[i]), "functions share their rows")
                rows = self.function(i)
            except FormatError as error:
                self._diagnostics.count("sframe_function_broken")
                self._diagnostics.problem(self._file, problem_of(error))
                if budget < 0:
                    return
                continue
            if rows is not None:
                yield rows

    def entry(self, i: int) -> FunctionEntry:
        """Return the SFrame index entry of function i (0 <= i < len(self), ascending by start)."""
        index = self.index
        info = int(index.info[i])
        return FunctionEntry(
            start=int(index.start[i]),
            size=int(index.size[i]),
            count=int(index.count[i]),
            repeat=int(index.repeat[i]) if info & INFO_PCMASK else 0,
            signal=bool(info & INFO_SIGNAL) and self.version >= 3,
            flex=int(index.info2[i]) & 0x1F == TYPE_FLEX,
            pauth_key="b" if info & INFO_KEY_B else "a",
        )

    def function(self, i: int) -> FunctionRows | None:
        """Return the SFrame rows of function i, or None if it has none. None means "unknown", not "outermost".

        Raises:
            FormatError: The rows are broken.
        """
        index, entry = self.index, self.entry(i)
        at, count = int(index.rows_at[i]), entry.count
        problem = _entry_problem(entry, at, int(index.info[i]), int(index.info2[i]))
        if problem:
            raise FormatError(self._section, int(index.entry_at[i]), problem)
        if not count:
            # A DEFAULT function of V3 without rows is outermost. For a signal frame, producers omit
            # the rows because they cannot express them (measured: binutils 2.47, .cfi_escape).
            if self.version < 3 or entry.signal or entry.flex or not entry.size:
                return None
            return self._rows(i, entry, [0], [self._reader.outermost(False)])
        starts, rules = self._read_rows(entry, at, 1 << (int(index.info[i]) & 0xF))
        if entry.repeat and self.index.abi == AMD64_LITTLE and starts == [0] and self._is_wrong_plt_got(rules[0]):
            self._diagnostics.count("sframe_plt_got_corrected")
            rules = [rules[0]._replace(cfa_off=8)]
        return self._rows(i, entry, starts, rules)

    def _is_wrong_plt_got(self, rule: Rule) -> bool:
        """Return True if an SFrame rule is the wrong one that GNU ld 2.44 to 2.47 writes for .plt.got: cfa = sp + 16.

        The blocks of .plt.got are one jump each. The return address is the only pushed word there, so the CFA is sp +
        8.
        """
        return (rule.cfa_reg, rule.cfa_off, rule.cfa_deref) == (self._sp, 16, False)

    def _rows(self, i: int, entry: FunctionEntry, starts: list[int], rules: list[Rule]) -> FunctionRows | None:
        """Return the SFrame rows of a function, cut at the start of the next one.

        GNU ld 2.40 states a size for the PLT of IBT that is too large.
        """
        end = entry.start + entry.size
        if i + 1 < len(self.index) and entry.start < int(self.index.start[i + 1]) < end:
            end = int(self.index.start[i + 1])
        absolute = tuple(entry.start + start for start in starts if entry.start + start < end)
        if not absolute:
            return None
        return FunctionRows(entry.start, end, absolute, tuple(rules[: len(absolute)]), entry.repeat)

    def _read_rows(self, entry: FunctionEntry, at: int, start_size: int) -> tuple[list[int], list[Rule]]:
        """Return (offsets from the function or block, rules) of an SFrame function's rows, ascending.

        Of several rows at one offset the last is used.
        """
        data, end, order = self._data, self.index.rows_end, self.index.byteorder
        rule, flex, signal = self._reader.rule, entry.flex, entry.signal
        limit = entry.repeat or entry.size
        starts: list[int] = []
        rules: list[Rule] = []
        last = -1
        for _ in range(entry.count):
            info_at = at + start_size
            if info_at >= end:
                raise FormatError(self._section, at, "row passes the section's end")
            start = data[at] if start_size == 1 else int.from_bytes(data[at:info_at], order)
            info = data[info_at]
            if info & 0x60 == 0x60:
                raise FormatError(self._section, info_at, "data words of unknown size")
            after = info_at + 1 + ((info >> 1 & 0xF) << (info >> 5 & 3))
            if after > end:
                raise FormatError(self._section, at, "row passes the section's end")
            if start < last:
                raise FormatError(self._section, at, "rows do not ascend")
            if start < limit:  # a row at the function's end covers no code (binutils bug 33131)
                if start == last:
                    starts.pop()
                    rules.pop()
                starts.append(start)
                rules.append(rule(data[info_at:after], flex, signal, info_at))
            last = start
            at = after
        return starts, rules


def _entry_problem(entry: FunctionEntry, at: int, info: int, info2: int) -> str:
    """Return what is wrong with an SFrame FDE, "" if nothing is."""
    if at < 0:
        return "rows outside the section"
    if info & 0xF > 2:
        return f"row type {info & 0xF} is unknown"
    if info2 & 0x1F > TYPE_FLEX:
        return f"function type {info2 & 0x1F} is unknown"
    if info & INFO_PCMASK and not entry.repeat:
        return "repeating block of no size"
    return ""


def read_sframe(
    data: bytes | memoryview,
    svma: int,
    arch: Arch,
    diagnostics: Diagnostics | None = None,
    section: str = ".sframe",
    file: str = "",
) -> SFrame:
    """Read an SFrame section as an unwind source.

    Args:
        data: Bytes of the section. More bytes may follow, such as those of a segment.
        svma: File address of the section; in memory, its address in the process minus the load bias.
        arch: The architecture.
        diagnostics: Counters of the recording.
        section: Name of the section, for errors.
        file: Path of the file, for problems.

    Raises:
        FormatError: The header or the extent of the index is broken.
    """
    return SFrame(memoryview(data), svma, arch, diagnostics or Diagnostics(), section, file)


def open_sframe(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> SFrame | None:
    """Return the SFrame table of a file or memory image, or None if it has none.

    Raises:
        FormatError: The table is broken.
    """
    table = file.unwind_table(".sframe")
    return None if table is None else read_sframe(table.read(), table.svma, arch, diagnostics, table.name, file.name)
