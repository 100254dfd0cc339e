"""Lookup of the unwind rule for a pc: module, then source, then row. Results are cached.

A row is cached once for all address spaces that map its file. There are separate tables for return addresses and for
other pcs, for two reasons. Sources may be used in another order for them. And the last byte of one function may be
looked up for a return address that is the first byte of the next function.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.arch.x86_instructions import begins_with_prologue
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.options import CODE, FALLBACK, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.heuristics.rules_and_checks_from_code import (
    MAX_EPILOGUE_BYTES,
    SpaceCode,
    Verdict,
    epilogue_rule,
    find_replacing_spans,
    restores_other_frame,
    sigreturn_rule,
    unprovable_rule,
)
from pyprof.unwind.module_unwind_sources import (
    READERS,
    NoRuntimeRules,
    Reader,
    RuntimeRules,
    open_sources,
    order_sources,
    promises_frame_pointers,
    promises_leaf_functions,
)
from pyprof.unwind.rule_cache import UNCOVERED_ID, KnownRule, Row, RowCache, RuleTable
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule, Source

if TYPE_CHECKING:
    from pyprof.unwind.code_analysis.aarch64_code_rules import Aarch64CodeRules
    from pyprof.unwind.code_analysis.analysed_code import AnalysedCode
    from pyprof.unwind.code_analysis.code_rules import CodeRules

MAX_ROWS = 1 << 19
"""Maximum number of cached unwind rows per address space. A full cache is cleared."""

MAX_FILES = 4096
"""Maximum number of object files with open unwind tables (each process has a separate vDSO). A full cache is
cleared.
"""

MAX_PROBLEMS = 8
"""Maximum number of broken places in unwind tables that are reported for one module. All of them are counted."""


class FileTables:
    """The unwind sources of one object file, and a cache of the functions whose rows were decoded.

    If none of the sources covers a pc, the sources of the separate debug file are opened once.
    """

    def __init__(
        self, path: str, sources: Sequence[Source], diagnostics: Diagnostics, more: Callable[[], Sequence[Source]]
    ) -> None:
        """Create the unwind tables of a file from its sources.

        Args:
            path: Path of the file, for reports.
            sources: The sources of the file itself.
            diagnostics: Counters of the recording.
            more: Function that opens the sources of the separate debug file.
        """
        self.sources: list[Source] = []
        self._path = path
        self._diagnostics = diagnostics
        self._more: Callable[[], Sequence[Source]] | None = more
        self._functions: list[tuple[list[int], list[FunctionRows]]] = []
        self._broken = 0
        self._add(sources)

    def _add(self, sources: Sequence[Source]) -> None:
        self.sources += sources
        self._functions += [([], []) for _ in sources]

    def function(self, svma: int, exact: bool) -> tuple[FunctionRows, Trust] | None:
        """Return the unwind rows of the function that covers a file address and their trust, from the first source that
        covers it.
        """
        for source in order_sources(self.sources, exact):
            known = self._function_of(source, svma)
            if known is not None:
                return known, source.trust
        if self._more is None:
            return None
        more, self._more = self._more, None
        self._add(more())
        return self.function(svma, exact)

    def decoded(self, svma: int, names: Collection[str]) -> FunctionRows | None:
        """Return the unwind rows of the function that covers a file address if one of the sources in `names` has
        already decoded them.
        """
        for source, (starts, functions) in zip(self.sources, self._functions, strict=True):
            at = bisect_right(starts, svma) - 1
            if source.name in names and at >= 0 and svma < functions[at].end:
                return functions[at]
        return None

    def extents(self) -> list[Extents]:
        """Return the address ranges of the functions that each open unwind source covers."""
        found = []
        for source in self.sources:
            with suppress(FormatError):
                found.append(source.extents())
        return found

    def _function_of(self, source: Source, svma: int) -> FunctionRows | None:
        starts, functions = self._functions[self.sources.index(source)]
        at = bisect_right(starts, svma) - 1
        if at >= 0 and svma < functions[at].end:
            return functions[at]
        try:
            function = source.function_at(svma)
        except FormatError as error:
            self._diagnostics.count(f"unwind_entry_broken:{source.name}")
            self._broken += 1
            if self._broken <= MAX_PROBLEMS:
                self._diagnostics.problem(self._path, problem_of(error))
            return None
        if function is None or not function.start <= svma < function.end or not function.starts:
            return None
        starts.insert(at + 1, function.start)
        functions.insert(at + 1, function)
        return function


def lacks_rows(function: FunctionRows, arch: Arch) -> bool:
    """Return True if the only row of a function has the rule that holds at every function's entry: CFA = sp + one word.

    Such a row is right for functions without a frame. The assembly of glibc 2.36 (`__mpn_mul_1`) has such entries
    although it pushes registers.
    """
    first = function.rules[0]
    return len(function.rules) == 1 and (first.cfa_reg, first.cfa_off) == (arch.sp, arch.word) and not first.signal


class RuleIndex:
    """All unwind rules of all address spaces of one architecture."""

    def __init__(
        self,
        arch: Arch,
        images: ImageStore,
        options: UnwindOptions,
        diagnostics: Diagnostics,
        readers: Mapping[str, Reader] = READERS,
        runtime: RuntimeRules | None = None,
    ) -> None:
        self.arch = arch
        self.runtime = runtime or NoRuntimeRules()
        self.images = images
        self.rules = RuleTable(arch)
        self._names = options.sources
        self._readers = readers
        self._diagnostics = diagnostics
        self._files: dict[int, tuple[ObjectFile, FileTables]] = {}
        self._file_rows: dict[int, tuple[ObjectFile, tuple[RowCache, RowCache]]] = {}
        self._code_rules: dict[int, CodeRules | Aarch64CodeRules] = {}
        self._spaces: dict[int, SpaceIndex] = {}

    def open_space(self, space: AddressSpace) -> SpaceIndex:
        found = self._spaces.get(space.id)
        if found is None:
            found = self._spaces[space.id] = SpaceIndex(self, space)
        return found

    def forget(self, space_id: int) -> None:
        """Drop the cached unwind rows of an address space that has ended. Rows of its files stay."""
        self._spaces.pop(space_id, None)

    def retire(self, files: Set[ObjectFile]) -> None:
        """Drop the unwind tables of files that no process maps any more."""
        for file in files:
            self._files.pop(id(file), None)
            self._file_rows.pop(id(file), None)
            self._code_rules.pop(id(file), None)

    def drop_idle_code(self, now: float) -> None:
        """Free the bytes of files that were read for the analysis of their code (CodeRules.drop_idle_code)."""
        for rules in self._code_rules.values():
            rules.drop_idle_code(now)

    def known_start(self, image: Image, svma: int, names: Collection[str]) -> int | None:
        """Return the start of the function that covers a file address if its rows are already known, else None. They
        may come from a table in `names` or from the analysis of its code.
        """
        found = self._files.get(id(image.file))
        rows = None if found is None else found[1].decoded(svma, names)
        if rows is not None:
            return rows.start
        code = self._code_rules.get(id(image.file))
        piece = None if code is None else code.known_piece(svma)
        return None if piece is None else piece.function

    def open_tables(self, image: Image) -> FileTables:
        file = image.file
        found = self._files.get(id(file))
        if found is None:
            if len(self._files) >= MAX_FILES:
                self._files.clear()
                self._file_rows.clear()
                self._code_rules.clear()
            tables = FileTables(file.name, self._open(file), self._diagnostics, lambda: self._open(image.debug))
            found = self._files[id(file)] = (file, tables)
        return found[1]

    def _open(self, file: ObjectFile | None) -> Sequence[Source]:
        return open_sources(file, self.arch, self._names, self._diagnostics, self._readers) if file is not None else ()

    def find_row(self, image: Image, code: SpaceCode, pc: int, exact: bool) -> Row:
        """Return the unwind row of a pc in an object file, with addresses relative to the base of the mapped image.

        If no source covers the pc, the row has UNCOVERED_ID.
        """
        known = self._file_rows.get(id(image.file))
        if known is None:
            known = self._file_rows[id(image.file)] = (image.file, (RowCache(), RowCache()))
        cache = known[1][exact]
        rel = image.rel(pc)
        row = cache.find_row(rel)
        if row is None:
            row = cache.add_row(self._decode(image, code, pc, exact), rel)
        return row

    def _decode(self, image: Image, code: SpaceCode, pc: int, exact: bool) -> Row:
        svma, rel = image.svma(pc), image.rel(pc)
        found = self.open_tables(image).function(svma, exact)
        if found is None:
            special = UNCOVERED_ID if exact else self._pushed(image, code, pc)
            special = special or self.find_uncovered_rule_id(code, pc, exact)
            piece = self.find_code(image, svma) if special == UNCOVERED_ID else None
            if piece is None and not special and exact and self._is_leaf(image):
                special = self.rules.intern(self._leaf_rule(), Trust.PDATA)
            if piece is None:
                return (rel, rel + 1, special or self._epilogue(code, pc, exact))
            return self.make_row(piece.rows, Trust.CODE, code, pc, (svma, rel), exact)
        start = found[0].start
        # most such functions push nothing, and the first analysis of a file reads all of its code
        if lacks_rows(found[0], self.arch) and begins_with_prologue(image.file.at_svma(start, 8)):
            piece = self.find_code(image, svma)
            if piece is not None and piece.function == start and piece.pushes:
                found = piece.rows, Trust.CODE
        row = self.make_row(*found, code, pc, (svma, rel), exact)
        return self._mark_replaced_frame(row, *found, image, code, rel, exact)

    def _is_leaf(self, image: Image) -> bool:
        """Return True if all functions of an image that no unwind table covers are known to have no frame."""
        return any(map(promises_leaf_functions, self.open_tables(image).sources))

    def _leaf_rule(self) -> Rule:
        """Return the unwind rule of an x86-64 function without a frame."""
        word = self.arch.word
        return Rule(self.arch.sp, word, RegRule(RegKind.AT_CFA, -word))

    def find_code(self, image: Image, svma: int) -> AnalysedCode | None:
        """Return the analysed code that covers a file address which no table covers, or None."""
        file = image.file
        if CODE not in self._names or self.arch.name not in ("x86_64", "aarch64") or not file.is_here:
            return None
        key = id(file)
        if key not in self._code_rules:
            extents = self.open_tables(image).extents()
            self._code_rules[key] = _open_code_rules(file, image.debug, self.arch, extents)
        return self._code_rules[key].piece_at(svma)

    def _mark_replaced_frame(
        self, row: Row, function: FunctionRows, trust: Trust, image: Image, code: SpaceCode, rel: int, exact: bool
    ) -> Row:
        """Return the unwind row of a lookup pc, with Rule.replacing set where the function has overwritten the saved
        registers of its frame by those of another frame.
        """
        start, end, rule = row

        def starts_function(avma: int) -> bool:
            svma = image.svma(avma)
            found = self.open_tables(image).function(svma, exact=True) if code.is_executable(avma) else None
            return found is not None and found[0].start == svma

        for span in find_replacing_spans(self.arch, function, image.bias, code, starts_function):
            low, jump, high = (image.rel(avma) - (not exact) for avma in span)
            known = self.rules.entries[rule]
            if rel < low:
                end = min(end, low)
            elif rel >= high:
                start = max(start, high)
            elif rel >= jump or known is None:
                start, end, rule = (
                    max(start, jump),
                    min(end, high),
                    self.rules.intern(unprovable_rule(self.arch), trust),
                )
            else:
                start, end = max(start, low), min(end, jump)
                rule = self.rules.intern(known.rule._replace(replacing=True), trust)
        return (start, end, rule)

    def _pushed(self, image: Image, code: SpaceCode, pc: int) -> int:
        """Return the rule id of a return address that marks the start of a stack, or UNCOVERED_ID.

        makecontext(3) and similar functions push the address of a function as the outermost return address. A function
        begins there, no call precedes it, and it is not a signal trampoline.
        """
        if (
            code.classify_return_address(pc + 1) is not Verdict.NO
            or self.find_uncovered_rule_id(code, pc, exact=False) != UNCOVERED_ID
        ):
            return UNCOVERED_ID
        svma = image.svma(pc + 1)
        found = self.open_tables(image).function(svma, exact=True)
        if found is None or found[0].start != svma:
            return UNCOVERED_ID
        return self.rules.intern(Rule(self.arch.sp, 0, UNDEFINED), found[1])

    def make_row(
        self, function: FunctionRows, trust: Trust, code: SpaceCode, pc: int, place: tuple[int, int], exact: bool
    ) -> Row:
        """Return the unwind row for a pc, from the decoded rows of the function that covers it.

        Args:
            function: The rows of the function.
            trust: The source of the rows.
            code: The code of the address space.
            pc: The lookup pc in the process.
            place: The lookup pc as a file address (svma), and relative to the start that the returned row counts from.
            exact: The pc is not a return address.
        """
        svma, rel = place
        here = (rel, rel + 1)
        offset = svma - function.start
        block, length = 0, function.end - function.start
        if function.repeat:
            block = offset - offset % function.repeat
            offset -= block
            length = min(length, block + function.repeat) - block
        at = bisect_right(function.starts, function.start + offset) - 1
        if at < 0:
            return (*here, self.find_uncovered_rule_id(code, pc, exact))
        if function.rules[at].signal and not self.arch.signals.kernel_cfi:
            trampoline = self.find_uncovered_rule_id(code, pc, exact)
            if trampoline != UNCOVERED_ID:
                return (*here, trampoline)
        other = restores_other_frame(function.rules[at], self.arch)
        rule = self.rules.intern(unprovable_rule(self.arch) if other else function.rules[at], trust)
        low = function.starts[at] - function.start
        high = function.starts[at + 1] - function.start if at + 1 < len(function.starts) else length
        high = min(max(high, offset + 1), length)
        if not exact and svma == function.end - 1:
            # The function ends with a call, so the return address belongs to the next function. Only a signal
            # trampoline is entered without a call of its start.
            trampoline = UNCOVERED_ID if function.rules[at].signal else self.find_uncovered_rule_id(code, pc, exact)
            return (*here, trampoline or rule)
        if not exact and block + high == function.end - function.start:
            high -= 1
        first = rel - offset
        return (first + low, first + high, rule)

    def find_sourceless_rule_id(self, code: SpaceCode, pc: int, exact: bool) -> int:
        """Return the rule id of a lookup pc that no unwind source covers, by the machine code at the pc.

        There is a rule if the code is a signal trampoline, or if its instructions lead to a return.
        """
        return self.find_uncovered_rule_id(code, pc, exact) or self._epilogue(code, pc, exact)

    def _epilogue(self, code: SpaceCode, pc: int, exact: bool) -> int:
        if FALLBACK not in self._names:
            return UNCOVERED_ID
        rule = epilogue_rule(self.arch, code.read(pc if exact else pc + 1, MAX_EPILOGUE_BYTES))
        return UNCOVERED_ID if rule is None else self.rules.intern(rule, Trust.EPILOGUE)

    def find_uncovered_rule_id(self, code: SpaceCode, pc: int, exact: bool) -> int:
        """Return the rule id of a lookup pc that no unwind table covers: that of a signal trampoline, or
        UNCOVERED_ID.
        """
        frame = self.arch.signals.trampoline_at(code.read, pc if exact else pc + 1, exact)
        return UNCOVERED_ID if frame is None else self.rules.intern(sigreturn_rule(self.arch, frame), Trust.SIGRETURN)


def _open_code_rules(
    file: ObjectFile, debug: ObjectFile | None, arch: Arch, extents: list[Extents]
) -> CodeRules | Aarch64CodeRules:
    """Return the analysis of the machine code of a file, which finds rules for functions without unwind tables. Few
    programs need the modules of the analysis, so they are imported here.
    """
    if arch.name == "aarch64":
        from pyprof.unwind.code_analysis.aarch64_code_rules import Aarch64CodeRules

        return Aarch64CodeRules(file, debug, arch, extents)
    from pyprof.unwind.code_analysis.code_rules import CodeRules

    return CodeRules(file, debug, arch, extents)


class SpaceIndex:
    """The unwind rules of one address space.

    All pcs are lookup pcs: pc - 1 for a return address (model.unwind_result.lookup_pc).

    Attributes:
        version: A number that changes whenever the rules of JIT code in the address space change.
    """

    def __init__(self, index: RuleIndex, space: AddressSpace) -> None:
        self.space = space
        self.code = SpaceCode(space, index.images, index.arch, partial(index.runtime.is_reserved, space))
        self._index = index
        self._caches = (RowCache(), RowCache())
        self.version = 1
        self._time_ns = 0
        self._mark = (0, 0)
        self._at_run_time: tuple[set[int], set[int]] = (set(), set())

    def set_time(self, time_ns: int) -> None:
        """Set the time for which later lookups find the rules of JIT code, which is generated and discarded at run
        time.

        Args:
            time_ns: CLOCK_MONOTONIC time.
        """
        self._time_ns = time_ns
        runtime = self._index.runtime
        mark = (runtime.version(self.space), bisect_right(runtime.changes(self.space), time_ns))
        if mark != self._mark:
            self._mark = mark
            for cache, starts in zip(self._caches, self._at_run_time, strict=True):
                cache.drop_rows(starts)
                starts.clear()
            self.version += 1

    def rule_id(self, pc: int, exact: bool) -> int:
        """Return the id of the unwind rule of one lookup pc."""
        return self.lasting_rule_id(pc, exact)[0]

    def find_rule(self, pc: int, exact: bool) -> KnownRule | None:
        """Return the unwind rule of one lookup pc, or None if no table covers it."""
        return self._index.rules.entries[self.rule_id(pc, exact)]

    def lasting_rule_id(self, pc: int, exact: bool) -> tuple[int, bool]:
        """Return (rule id, lasting) for one lookup pc. `lasting` is True if the rule stays valid when rules of JIT code
        change.
        """
        cache = self._caches[exact]
        row = cache.find_row(pc)
        if row is None:
            row = self._miss(cache, pc, exact)
        return row[2], row[0] not in self._at_run_time[exact]

    def _miss(self, cache: RowCache, pc: int, exact: bool) -> Row:
        if len(cache) >= MAX_ROWS:
            cache.clear()
        image = self._index.images.image(self.space, pc)
        if image is None:
            row, changes = self._run_time_row(pc, exact)
            return self._add_changing(cache, row, pc, exact) if changes else cache.add_row(row, pc)
        changes = self._index.runtime.is_in_file(self.space, pc)
        if changes:
            found = self._index.runtime.rows(self.space, pc, exact, self._time_ns, self._rule_at)
            if found is not None:
                return self._add_changing(
                    cache, self._index.make_row(*found, self.code, pc, (pc, pc), exact), pc, exact
                )
        start, end, rule = self._index.find_row(image, self.code, pc, exact)
        base = pc - image.rel(pc)
        module = image.module  # a broken table may claim more than there is
        row = max(base + start, module.start), min(base + end, module.end), rule
        return self._add_changing(cache, row, pc, exact) if changes else cache.add_row(row, pc)

    def _add_changing(self, cache: RowCache, row: Row, pc: int, exact: bool) -> Row:
        """Add a row for JIT code to a cache that is emptied when the rules of JIT code change. Return the row as it was
        stored.
        """
        row = cache.add_row(row, pc)
        self._at_run_time[exact].add(row[0])
        return row

    def _rule_at(self, pc: int, exact: bool) -> Rule | None:
        known = self.find_rule(pc, exact)
        return None if known is None else known.rule

    def _run_time_row(self, pc: int, exact: bool) -> tuple[Row, bool]:
        """Return the unwind row of a pc in code that no file contains (JIT code), and True if the row may change."""
        module = self.space.module_at(pc)
        if module is None and not self._index.runtime.is_reserved(self.space, pc):
            return (pc, pc + 1, self._index.find_uncovered_rule_id(self.code, pc, exact)), False
        found = self._index.runtime.rows(self.space, pc, exact, self._time_ns, self._rule_at)
        if found is None:
            return (pc, pc + 1, self._index.find_sourceless_rule_id(self.code, pc, exact)), True
        start, end, rule = self._index.make_row(*found, self.code, pc, (pc, pc), exact)
        return ((start, end, rule) if module is None else (max(start, module.start), min(end, module.end), rule)), True

    def has_frame_pointers(self, pc: int) -> bool:
        """Return True if an unwind table of the module at pc promises frame records for code that the table does not
        cover.
        """
        image = self._index.images.image(self.space, pc)
        return image is not None and any(map(promises_frame_pointers, self._index.open_tables(image).sources))

    def function_start(self, pc: int, exact: bool) -> int | None:
        """Return the start in the process of the function that covers pc, according to the unwind tables."""
        found = self.function_range(pc, exact)
        return None if found is None else found[0]

    def function_range(self, pc: int, exact: bool) -> tuple[int, int] | None:
        """Return (start, end) in the process of the function that covers pc, according to the unwind tables."""
        image = self._index.images.image(self.space, pc)
        if image is None:
            return None
        found = self._index.open_tables(image).function(image.svma(pc), exact)
        if found is not None:
            return (found[0].start + image.bias, found[0].end + image.bias)
        piece = self._index.find_code(image, image.svma(pc))
        return None if piece is None else (piece.function + image.bias, piece.rows.end + image.bias)

    def find_load_bias(self, pc: int) -> int:
        """Return the load bias of the module at a pc: its address in the process minus its address in the file."""
        image = self._index.images.image(self.space, pc)
        return 0 if image is None else image.bias
