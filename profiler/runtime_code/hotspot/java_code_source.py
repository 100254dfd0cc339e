"""Code of a Java virtual machine (HotSpot): unwind rules, names, inlined methods and lines, read from its memory.

The virtual machine states its own layout (vm_structs), so stripped JVMs of all versions are read alike, without an
agent and without options. Code is looked up when a sample first meets it, and examined again from time to time: the
virtual machine discards code and places other code there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.jit_code_map import ALWAYS, NEVER, CodeMap, CodeName, Span
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import Trust, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import I64, CodeScan, NoImage, Ranges, Rows, RuleAt, report_problem
from pyprof.runtime_code.hotspot.code_cache import STUB_LIST
from pyprof.runtime_code.hotspot.vm_structs import SYMBOLS

if TYPE_CHECKING:
    from pyprof.runtime_code.hotspot.java_frames import JavaCode, JavaVm, Place
    from pyprof.runtime_code.hotspot.thread_names import JavaThreadNames

ARCHES = ("x86_64",)
CALL_STUB_PLACES = (("call_stub", None, 0),)
"""The names that a profile shows for the frame through which native code calls Java, as (name, source file, line): only
the name call_stub.
"""
MIN_NAMES_NS = 500_000_000
"""Minimum time between two readings of the names of a Java process's threads, in nanoseconds."""
NAMES_REST = 100
"""Factor that limits the readings of thread names: after a reading that took t, there is none for NAMES_REST * t."""
MAX_NAMES = 1 << 16
"""Maximum number of names of a Java process's threads. Beyond it, the names of ended threads are dropped."""
REST = 20
"""Factor that limits the checks of known HotSpot code: code whose check took t is not checked again for REST * t."""
MIN_REST_NS = 100_000_000
"""Minimum time in nanoseconds between two checks of known HotSpot code."""
MAX_INTERPRETED = 1 << 16
"""Maximum number of descriptions of interpreted Java methods at a line that are cached."""
METHODS_AGE_NS = 5_000_000_000
"""Time in nanoseconds after which names of Java methods are read again, because classes may have been unloaded, which
is rare.
"""
MAX_MISSES = 1 << 14
MAX_RETRIES = 128
"""Maximum number of addresses at which no HotSpot code was found and that are looked up again. If there are more, all
count as never looked up.
"""
MAX_PLACES = 1 << 16
"""Maximum number of addresses in one piece of HotSpot's code whose methods or stubs are cached."""


class JavaSpans(CodeMap["JavaCode"]):
    """The pieces of HotSpot's generated code by address and time. Each piece is read when a caller first looks it
    up.
    """

    def __init__(self, source: HotspotCode) -> None:
        super().__init__()
        self._source = source

    def current(self, pc: int) -> Span[JavaCode] | None:
        """Return the known piece of code that is at an address now, or None."""
        return super().find(pc, NEVER - 1)

    def find(self, pc: int, time_ns: int) -> Span[JavaCode] | None:
        span = super().find(pc, time_ns)
        if span is None and self.current(pc) is None:
            self._source.load(pc)
            span = super().find(pc, time_ns)
        if span is not None and span.value.has_parts and pc not in span.value.places:
            self._source.load_places(span, pc)
        return span


class HotspotCode(NoImage):
    """The generated code of one process's Java virtual machine. Implements ManagedRuntime."""

    label = "hotspot"
    in_memory = True
    code_ranges: Ranges = ()
    own_modules = frozenset({"libjvm.so", "libjli.so"})

    def __init__(self, arch: Arch, diagnostics: Diagnostics) -> None:
        self.spans = JavaSpans(self)
        self._arch = arch
        self._diagnostics = diagnostics
        self._vm: JavaVm | None = None
        self._broken = arch.name not in ARCHES
        self._misses: set[int] = set()
        self._looked_ns = self._rest_until_ns = self._methods_until_ns = 0
        self._interpreted: dict[tuple[int, int], Span[JavaCode]] = {}
        self._read_calls: set[int] = set()
        """Lookup pcs that were read ahead since the last check."""
        self._expected: dict[Span[JavaCode], int] = {}
        """Time of the last sample that waits to be unwound, for each description that was read ahead."""
        self._names: JavaThreadNames | None = None
        self._names_until_ns = 0
        self.thread_names: dict[int, str] = {}

    def update(self, scan: CodeScan) -> bool:
        if scan.quick or self._broken:
            return False
        symbols = {name: avma for name, avma in scan.symbols if name in (*SYMBOLS, STUB_LIST)}
        if self._vm is None:
            return bool(symbols) and self._open(scan, symbols)
        self._vm.memory.renew(scan.space.read)
        self._read_thread_names(scan)
        if scan.now_ns < self._rest_until_ns:
            return False
        return self._examine(scan)

    def _open(self, scan: CodeScan, symbols: Mapping[bytes, int]) -> bool:
        from pyprof.runtime_code.hotspot.java_frames import JavaVm
        from pyprof.runtime_code.hotspot.thread_names import JavaThreadNames

        try:
            self._vm = JavaVm(scan.space, symbols, self._arch)
        except FormatError as error:
            if not scan.space.read(symbols[SYMBOLS[0]], 8).strip(b"\0"):
                return False  # the virtual machine has not begun
            self._broken = True
            self._diagnostics.count("hotspot_unreadable")
            report_problem(self._diagnostics, self.label, problem_of(error))
            return False
        self._looked_ns = scan.now_ns
        with suppress(FormatError):
            self._names = JavaThreadNames(self._vm.memory, self._vm.structs, self._vm.methods.version)
        self._read_thread_names(scan)
        return True

    def _read_thread_names(self, scan: CodeScan) -> None:
        """Read the names of Java's threads if they were not read recently."""
        if self._names is None or scan.now_ns < self._names_until_ns:
            return
        before_ns = time.monotonic_ns()
        found = self._names.read_names()
        self.thread_names = (self.thread_names if len(self.thread_names) < MAX_NAMES else {}) | found
        self._names_until_ns = scan.now_ns + max(MIN_NAMES_NS, NAMES_REST * (time.monotonic_ns() - before_ns))

    def _examine(self, scan: CodeScan) -> bool:
        """Drop the descriptions of HotSpot code that was discarded or replaced. Return True if there was any, or if
        code may now be at addresses where none was found before.

        Samples since the previous check, or since the last one whose code was read ahead, are described by the new
        code: HotSpot discards only code that no thread runs, and threads run new code at once.
        """
        vm = self._vm
        assert vm is not None
        changed = False
        self._read_calls.clear()
        try:
            vm.cache.update()
            if scan.now_ns >= self._methods_until_ns:
                vm.methods.clear()
                self._methods_until_ns = scan.now_ns + METHODS_AGE_NS
            found = [pc for pc in islice(self._misses, MAX_RETRIES) if vm.cache.find_blob(pc) is not None]
            if found or len(self._misses) > MAX_RETRIES:
                self._misses.clear()
                changed = True
            for span in list(self.spans):
                if not vm.is_current(span.value.blob):
                    self._end(span)
                    changed = True
        except FormatError:  # the process has exited
            pass
        self._expected.clear()
        took_ns = time.monotonic_ns() - scan.now_ns
        self._rest_until_ns = scan.now_ns + max(REST * took_ns, MIN_REST_NS)
        self._looked_ns = scan.now_ns
        return changed

    def load_all(self) -> None:
        """Read all of HotSpot's generated code and its names, for inspection."""
        if self._vm is not None:
            with suppress(FormatError):
                codes = list(self._vm.list_code())
                self.spans.add_spans([Span(code.blob.start, code.blob.end, code) for code in codes], 0, 1)
                if not self._vm.has_dense_scopes(codes):
                    self._diagnostics.count("java_inlined_methods_unknown")

    def load(self, pc: int) -> None:
        """Read the piece of HotSpot's generated code at an address, if there is one."""
        vm = self._vm
        if vm is None or pc in self._misses:
            return
        if self._load_code(vm, pc) is None:
            if len(self._misses) >= MAX_MISSES:
                self._misses.clear()
            self._misses.add(pc)

    def _load_code(self, vm: JavaVm, pc: int) -> Span[JavaCode] | None:
        code = vm.read_code(pc)
        if code is None:
            return None
        before = self._looked_ns
        span = Span(code.blob.start, code.blob.end, code)
        span.since_ns = max(self.spans.find_end(span.start, span.end) - 1, ALWAYS)
        self.spans.add_spans([span], before, before + 1)
        return span

    def load_places(self, span: Span[JavaCode], pc: int) -> None:
        """Find the Java methods, with inlined ones, that are active at a lookup pc of a compiled method, or the stub at
        the pc. Store them in the description of the code (JavaCode.places).
        """
        code = span.value
        if self._vm is None or len(code.places) >= MAX_PLACES:
            return
        if not code.blob.is_nmethod:
            code.places[pc] = ((code.name_at(pc), None, 0),)
            return
        self._vm.fill(code)
        found: list[Place] = []
        frames, is_cut = code.sampled.find(pc - code.blob.start) if code.sampled is not None else ([], False)
        for avma, indices in frames:
            method = self._vm.methods.find(avma)
            if method is None:
                found = []
                break
            lines = {method.line_at(index) for index in indices}
            line = lines.pop() if len(lines) == 1 else 0
            has_file = method.file and (line or method.lines)
            found.append((method.name, method.file if has_file else None, line))
        if is_cut:
            self._diagnostics.count("java_inlined_methods_unknown")
        code.places[pc] = tuple(found) or ((code.name, None, 0),)

    def rows(self, span: Span[JavaCode], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        vm = self._vm
        found = vm.rows(span.value, pc, exact) if vm is not None else None
        return None if found is None else (found, Trust.HOTSPOT)

    def name(self, span: Span[JavaCode]) -> CodeName:
        code = span.value
        lines = ((0, code.file, code.line),) if code.line else ()
        return CodeName(code.name, code.blob.start, lines, code.places)

    @property
    def is_open(self) -> bool:
        return self._vm is not None

    def is_entry(self, span: Span[JavaCode], pc: int) -> bool:
        return span.value.places.get(pc, ()) == CALL_STUB_PLACES

    @property
    def reserved(self) -> tuple[int, int]:
        """Start and end of the memory that is reserved for HotSpot's generated code, (0, 0) if it is unknown."""
        return self._vm.cache.reserved if self._vm is not None else (0, 0)

    @property
    def stack_named(self) -> Ranges:
        """The address range of HotSpot's interpreter; empty until a sample lies in it."""
        blob = self._vm.interpreter if self._vm is not None else None
        return ((blob.start, blob.end),) if blob is not None else ()

    def read_ahead(self, space: AddressSpace, batch: SampleBatch) -> None:
        from pyprof.runtime_code.hotspot.stack_words import read_stack_words

        vm = self._vm
        if vm is None or space.ended:
            return
        vm.memory.renew(space.read)
        found = read_stack_words(batch, space, *self.reserved, vm.bytecode_slot)
        checked: set[Span[JavaCode]] = set()
        for (pc, exact), time_ns in found.calls.items():
            span = self.spans.current(pc)
            if span is not None and span not in checked:
                checked.add(span)
                if not _is_current(vm, span):
                    self._end(span)
                    span = self._load_code(vm, pc)
            if pc not in self._read_calls:
                self._read_calls.add(pc)
                span = self._read_call(vm, pc, exact)
            if span is not None:
                self._expected[span] = max(time_ns, self._expected.get(span, 0))
        for method, pointer in found.interpreted if vm.interpreter is not None else ():
            self._bind_frame(vm, method, pointer)

    def _end(self, span: Span[JavaCode]) -> None:
        """End the validity of a description whose code is gone, after the last sample of it that waits."""
        self.spans.remove(span, max(self._looked_ns, self._expected.pop(span, 0) + 1))

    def _read_call(self, vm: JavaVm, pc: int, exact: bool) -> Span[JavaCode] | None:
        """Read the code at a lookup pc of a stack that waits to be unwound: its name, and its rules for this pc."""
        span = self.spans.current(pc) or self._load_code(vm, pc)
        if span is not None:
            vm.rows(span.value, pc, exact)
            if span.value.has_parts and pc not in span.value.places:
                self.load_places(span, pc)
        return span

    def bind_frames(self, batch: SampleBatch, walk: Walk, lanes: I64, frames: I64) -> Sequence[Span[JavaCode] | None]:
        vm = self._vm
        if vm is None:
            return [None] * len(frames)
        found = vm.find_methods(batch, walk, lanes, frames)
        spans = {place: self._bind_frame(vm, *place) for place in set(found)}
        return [spans[place] for place in found]

    def _bind_frame(self, vm: JavaVm, avma: int, pointer: int) -> Span[JavaCode] | None:
        """Return the description of an interpreter frame of Java.

        Args:
            vm: The virtual machine.
            avma: Address of the Method, 0 if unknown.
            pointer: Address of the current bytecode.
        """
        method = vm.methods.find(avma) if avma else None
        if method is None:
            return None
        index = pointer - method.bytecode
        line = method.line_at(index) if 0 <= index < method.size else 0
        key = (avma, line)
        span = self._interpreted.get(key)
        if span is None or span.value.name != method.name:
            if len(self._interpreted) >= MAX_INTERPRETED:
                self._interpreted.clear()
            ((start, end),) = self.stack_named
            span = Span(start, end, vm.describe_interpreted(method, line))
            self._interpreted[key] = span
        return span


def _is_current(vm: JavaVm, span: Span[JavaCode]) -> bool:
    """Return True if a piece of HotSpot's generated code is unchanged, or if the process has exited."""
    try:
        return vm.is_current(span.value.blob)
    except FormatError:
        return True
