"""The code of V8, the JavaScript engine of Node.js: names, inlined functions and lines, read from the process's memory.

V8 keeps the function of an interpreted frame, and the function of baseline code, on the stack: they are read from the
stack copy of the sample. Optimised code states its functions itself. The garbage collector moves objects. So objects
that are read later than the sample are compared with the contents of the frame. If they do not agree, the frame gets no
name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.integer_array_operations import distinct
from pyprof.model.jit_code_map import NEVER, CodeMap, CodeName, Span
from pyprof.model.loss_reason_texts import problem_of
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import Trust, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import I64, CodeScan, NoImage, Ranges, Rows, RuleAt, report_problem
from pyprof.runtime_code.v8.function_search_by_bytecode import find_by_bytecode, find_script_list, read_script_list
from pyprof.runtime_code.v8.generated_code_reader import StackCall, find_calls
from pyprof.runtime_code.v8.heap import MARK
from pyprof.runtime_code.v8.unwind_rules import Builtins, V8FrameRules
from pyprof.unwind.sample_memory import LaneMemory

if TYPE_CHECKING:
    from pyprof.runtime_code.v8.functions import JsFunction, JsPositionTable
    from pyprof.runtime_code.v8.generated_code_reader import JsCode, V8Engine

ARCHES = ("x86_64",)
REST = 50
"""Factor that limits the checks of known V8 code: code whose check took t is not checked again for REST * t."""
MIN_REST_NS = 500_000_000
"""Minimum time in nanoseconds between two checks of known V8 code."""
SEARCH_REST = 20
"""Factor that limits the searches of V8's scripts: after a search that took t of processor time, there is none for
SEARCH_REST * t.
"""
MIN_SEARCH_NS = 100_000_000
"""Minimum time in nanoseconds between two searches of scripts for functions without a name."""
WAITING_AGE_NS = 5_000_000_000
"""Time in nanoseconds for which JavaScript frames without a name are kept to be named later. After it, another
BytecodeArray may be at their address.
"""
MAX_WAITING = 1 << 10
"""Limit on JavaScript frames that are kept to be named later: maximum number of functions, and of bytecode offsets in
each function.
"""
MAX_FRAMES = 1 << 16
"""Maximum number of functions and lines of JavaScript frames that are cached."""
MAX_INSTANCES = 1 << 8
"""Maximum number of WebAssembly instances whose functions are cached."""
MAX_LISTS = 1 << 6
"""Maximum number of V8 isolates of one process (each worker thread has one) whose scripts are searched."""
MAX_MISSES = 1 << 14
MAX_RETRIES = 128
"""Maximum number of addresses at which no V8 code was found and that are looked up again. If there are more, all count
as never looked up.
"""
MAX_PLACES = 1 << 16
"""Maximum number of addresses of one piece of V8 code whose inlined functions are cached."""
MAX_BUILTINS = 64 << 20
"""Maximum size in bytes of the code that is built into V8."""

_CODE_PART = 1 << 18
"""Size in bytes and alignment of the address range that describes a frame whose generated code has been removed since
its sample.
"""
_PAGE = 1 << 18
"""Size in bytes and alignment of a page of V8's heap, by which V8 makes reserved memory executable."""
MAX_CODE_RANGE = 512 << 20
"""Maximum size in bytes of the memory that one V8 reserves for its generated code."""
_BUILTIN = b"Builtins_"
_ROOT = "r13"
"""Register that holds the address of V8's roots while V8's code runs, on x86-64."""
_BLOB, _BLOB_SIZE = b"v8_Default_embedded_blob_code_", b"v8_Default_embedded_blob_code_size_"


class JsSpans(CodeMap["JsCode"]):
    """The pieces of V8's generated code by address and time. Each piece is read when a caller first looks it up."""

    def __init__(self, source: V8Code) -> None:
        super().__init__()
        self._source = source

    def find(self, pc: int, time_ns: int) -> Span[JsCode] | None:
        span = super().find(pc, time_ns)
        if span is None and self.current(pc) is None:
            self._source.load(pc)
            span = super().find(pc, time_ns)
        if span is not None and span.value.function is not None and pc not in span.value.places:
            self._source.load_places(span, pc)
        return span

    def current(self, pc: int) -> Span[JsCode] | None:
        """Return the most recently read piece of V8's code that covers an address, if it is still valid, or None.
        Nothing is read.
        """
        return super().find(pc, NEVER - 1)


class V8Code(NoImage):
    """The generated code of one process's V8. Implements ManagedRuntime."""

    label = "v8"
    in_memory = True
    thread_names: Mapping[int, str] = MappingProxyType({})
    own_modules: frozenset[str] = frozenset()  # node's file has zlib, OpenSSL and much else

    def __init__(self, arch: Arch, diagnostics: Diagnostics) -> None:
        self.spans = JsSpans(self)
        self._arch = arch
        self._diagnostics = diagnostics
        self._engine: V8Engine | None = None
        self._broken = arch.name not in ARCHES
        self._space: AddressSpace | None = None
        self._misses: set[int] = set()
        self._looked_ns = self._rest_until_ns = 0
        self._frames: dict[tuple[int, int, int], Span[JsCode]] = {}
        self._ahead: dict[tuple[int, int, int], Span[JsCode] | None] = {}
        self._expected: dict[Span[JsCode], int] = {}
        """CLOCK_MONOTONIC time in ns of the last sample, not yet unwound, that needs a description, for each
        description that was read in advance.
        """
        self._bound_ns = 0
        self._shared: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], dict[int, Span[JsCode]]] = {}
        self._waiting_until_ns = self._search_again_ns = 0
        self._bytecode_lines: dict[int, JsPositionTable | None] = {}
        self._numbers: dict[tuple[JsFunction, int, int], Span[JsCode]] = {}
        self._wasm: dict[int, dict[int, int]] = {}
        self._wasm_spans: dict[tuple[int, int], Span[JsCode]] = {}
        self._script_lists: dict[int, int] = {}
        """Address of the root for the list of scripts of each V8 isolate in the process, by the value of the root
        register; 0 if none was found.
        """
        self._baseline: list[tuple[int, int]] = []
        self._builtins = Builtins([], ())
        self._builtins_generation = 0
        self.reserved = (0, 0)
        self._symbols: Mapping[bytes, int] = {}

    @cached_property
    def _rules(self) -> V8FrameRules:
        return V8FrameRules(self._arch)

    def update(self, scan: CodeScan) -> bool:
        if scan.quick or self._broken:
            return False
        if self._engine is None:
            symbols = dict(reversed(scan.symbols))  # the first wins: V8 maps a part of its file a second time
            return MARK in symbols and self._open(scan, symbols)
        self._use_space(scan.space)
        if scan.now_ns < self._rest_until_ns:
            return False
        return self._examine(scan)

    def _open(self, scan: CodeScan, symbols: Mapping[bytes, int]) -> bool:
        from pyprof.runtime_code.v8.generated_code_reader import V8Engine

        try:
            self._engine = V8Engine(scan.space, symbols)
        except FormatError as error:
            self._broken = True
            self._diagnostics.count("v8_unreadable")
            report_problem(self._diagnostics, self.label, problem_of(error))
            return False
        self._symbols = symbols
        self._use_space(scan.space)
        self._looked_ns = scan.now_ns
        return True

    def _use_space(self, space: AddressSpace) -> None:
        """Read V8's memory through an address space of the process from now on.

        After its start, V8 maps its built-in functions a second time, so a later address space may have more mappings
        of them.
        """
        if self._space is space or self._engine is None:
            return
        self._engine.renew(space)
        if self._space is None or space.generation > self._builtins_generation:
            self._builtins = find_builtins(space, self._symbols)
            self._builtins_generation = space.generation
            self.reserved = find_code_range(space, self._builtins.ranges)
        self._space = space

    def _examine(self, scan: CodeScan) -> bool:
        """Drop the descriptions of V8 code that was discarded or moved. Return True if there was any, or if code may
        now be at addresses where none was found before.
        """
        engine = self._engine
        assert engine is not None
        engine.begin_check()
        kept = [(key, span) for key, span in self._frames.items() if span.value.function is not None]
        self._frames = {key: span for key, span in kept if self._expected.get(span, 0) > self._bound_ns}
        self._expected = {span: self._expected[span] for span in self._frames.values()}
        self._ahead.clear()
        self._search_scripts()
        self._bytecode_lines.clear()
        if scan.now_ns >= self._waiting_until_ns:
            self._waiting.clear()
            self._waiting_until_ns = scan.now_ns + WAITING_AGE_NS
        changed = False
        if self._misses:
            found = [pc for pc in islice(self._misses, MAX_RETRIES) if self._read_code(pc) is not None]
            if found or len(self._misses) > MAX_RETRIES:
                self._misses.clear()
                changed = True
        for span in list(self.spans):
            if not engine.is_current(span.value):
                self.spans.remove(span, scan.now_ns)
                changed = True
        if changed:
            self._note_baseline()
        took_ns = time.monotonic_ns() - scan.now_ns
        self._rest_until_ns = scan.now_ns + max(REST * took_ns, MIN_REST_NS)
        self._looked_ns = scan.now_ns
        return changed

    def _note_baseline(self) -> None:
        self._baseline = [(span.start, span.end) for span in self.spans if span.value.owner]

    def _read_code(self, pc: int) -> JsCode | None:
        mapping = self._space.mapping_at(pc) if self._space is not None else None
        if self._engine is None:
            return None
        if mapping is not None and mapping.executable:
            return self._engine.read_code(pc, mapping.start)
        is_reserved = self.reserved[0] <= pc < self.reserved[1]
        return self._engine.read_code(pc, pc & -_PAGE) if is_reserved else None

    def load(self, pc: int) -> None:
        """Read the piece of V8's generated code at an address, if there is one."""
        if self._engine is None or pc in self._misses:
            return
        if self._load_code(pc) is None:
            if len(self._misses) >= MAX_MISSES:
                self._misses.clear()
            self._misses.add(pc)

    def _load_code(self, pc: int) -> Span[JsCode] | None:
        from pyprof.runtime_code.v8.generated_code_reader import BUILTIN, JsCode

        builtin = self._builtins.find(pc)
        code = self._read_code(pc) if builtin is None else JsCode(0, builtin[1], builtin[2], BUILTIN, builtin[0])
        if code is None:
            return None
        before = self._looked_ns
        span = Span(code.start, code.end, code)
        self.spans.add_spans([span], before, before + 1)
        if code.owner:
            self._note_baseline()
        return span

    def read_ahead(self, space: AddressSpace, batch: SampleBatch) -> None:
        if self._engine is None or space.ended:
            return
        self._use_space(space)
        self._find_script_lists(space, batch)
        memories: dict[int, LaneMemory] = {}
        known = (*self._builtins.ranges, self.reserved) if self.reserved[1] else self._builtins.ranges
        for call in find_calls(batch, space, known):
            key, time_ns = (call.lookup, call.function, call.offset), int(batch.time_ns[call.lane])
            if key not in self._ahead:
                if len(self._ahead) >= MAX_FRAMES:
                    self._ahead.clear()
                memory = memories.setdefault(call.lane, LaneMemory(batch, call.lane))
                self._ahead[key] = self._read_call(call, time_ns, memory)
            span = self._ahead[key]
            if span is not None:
                self._expected[span] = time_ns
        self._search_scripts()

    def _find_script_lists(self, space: AddressSpace, batch: SampleBatch) -> None:
        """Find the list of scripts of each V8 isolate whose code was running at a sample of a batch. V8's code has the
        address of the isolate's roots in a register.
        """
        assert self._engine is not None
        pc, root = batch.regs[:, self._arch.pc], batch.regs[:, self._arch.registers.index(_ROOT)]
        for low, high in self._builtins.ranges:
            inside = (batch.space == space.id) & (pc >= np.uint64(low)) & (pc < np.uint64(high))
            for value in distinct(root[inside]).tolist():
                if value not in self._script_lists and len(self._script_lists) < MAX_LISTS:
                    self._script_lists[value] = find_script_list(self._engine.heap, value)

    def _read_call(self, call: StackCall, time_ns: int, memory: LaneMemory) -> Span[JsCode] | None:
        """Read the code at a call on the stack and the function of its frame. Return the description of the frame if
        the function, not the code, determines its name.
        """
        span = self.spans.current(call.lookup) or self._load_code(call.lookup)
        if span is None:
            return None
        self._fill(span.value)
        if span.value.function is not None and call.lookup not in span.value.places:
            self.load_places(span, call.lookup)
        return self._bind_function(call.lookup, time_ns, memory, call.fp) if call.fp else None

    def load_all(self) -> None:
        """Read nothing: V8 has no list of its code that could be read from outside."""

    def load_places(self, span: Span[JsCode], pc: int) -> None:
        """Find the JavaScript functions, with inlined ones, that are active at a lookup pc of optimised code, and store
        them in its description (JsCode.places).
        """
        if self._engine is not None and len(span.value.places) < MAX_PLACES:
            span.value.places[pc] = self._engine.find_places(span.value, pc)

    def rows(self, span: Span[JsCode], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        self._fill(span.value)
        rows = span.value.rows
        return (rows, Trust.V8) if rows is not None and rows.start <= pc < rows.end else None

    def _fill(self, code: JsCode) -> None:
        """Determine the unwind rules of a piece of V8's code and store them in its description, if that was not done
        before.
        """
        if self._engine is not None and not code.filled:
            code.filled = True
            code.rows = self._engine.make_rows(code, self._rules)

    def name(self, span: Span[JsCode]) -> CodeName:
        code = span.value
        lines: tuple[tuple[int, str, int], ...] = ()
        if code.function is not None and code.line:
            script = code.function.script
            lines = ((0, script.name if script is not None else "", code.line),)
        return CodeName(code.name, code.start, lines, code.places)

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def is_entry(self, span: Span[JsCode], pc: int) -> bool:
        return False

    @property
    def code_ranges(self) -> Ranges:
        return self._builtins.ranges

    @property
    def stack_named(self) -> Ranges:
        return (*self._builtins.ranges, *self._baseline, *((pc, pc + 1) for pc in self._misses))

    def bind_frames(self, batch: SampleBatch, walk: Walk, lanes: I64, frames: I64) -> Sequence[Span[JsCode] | None]:
        self._bound_ns = int(batch.time_ns.min())
        memories = {lane: LaneMemory(batch, lane) for lane in distinct(lanes).tolist()}
        places = zip(lanes.tolist(), frames.tolist(), strict=True)
        return [self._bind_frame(batch, walk, lane, at, memories[lane]) for lane, at in places]

    def _bind_frame(
        self, batch: SampleBatch, walk: Walk, lane: int, at: int, memory: LaneMemory
    ) -> Span[JsCode] | None:
        if self._engine is None or at + 1 >= int(walk.start[lane + 1]):
            return None
        slots = self._engine.layout.at
        fp = int(walk.sp[at + 1]) - 16
        if fp + slots["fp_function"] < int(walk.sp[at]) or memory.word(fp + 8) != int(walk.pc[at + 1]):
            return None
        return self._bind_function(int(walk.pc[at]) - (not walk.exact[at]), int(batch.time_ns[lane]), memory, fp)

    def _bind_function(self, lookup: int, time_ns: int, memory: LaneMemory, fp: int) -> Span[JsCode] | None:
        """Return the description of the V8 frame at fp, by the function that the frame holds, or None if no function is
        found.
        """
        assert self._engine is not None
        slots = self._engine.layout.at
        context, function = memory.word(fp + slots["fp_context"]), memory.word(fp + slots["fp_function"])
        if context is None or function is None or context & 3 != 1 or function & 3 != 1:
            is_wasm = context == slots["wasm_frame"] << 1 and function is not None and function & 3 == 1
            return self._bind_wasm(function or 0, lookup) if is_wasm else None
        code = self.spans.find(lookup, time_ns)
        if code is not None and code.value.owner:
            return self._bind_baseline(code.value, function, memory, fp)
        bytecode, offset = memory.word(fp + slots["fp_bytecode"]) or 0, memory.word(fp + slots["fp_offset"])
        number = offset >> 32 if offset is not None and not offset & 0xFFFFFFFF else -1
        if code is None and (number < 0 or not self._engine.heap.has_type(bytecode, "type_bytecode")):
            return self._bind_lost_code(lookup, function, bytecode, memory, fp)
        # also with --interpreted-frames-native-stack, where each function has a copy of the interpreter's entry
        return self._bind_interpreted(function, bytecode, number, memory, fp) if bytecode and number >= 0 else None

    def _bind_wasm(self, instance: int, pc: int) -> Span[JsCode] | None:
        """Return the description of a frame of WebAssembly code, by the instance that the frame holds. The garbage
        collector may have moved the instance since the sample.
        """
        from pyprof.runtime_code.v8.functions import find_wasm_function, read_wasm_functions
        from pyprof.runtime_code.v8.generated_code_reader import JsCode

        key = instance, pc, -3
        span = self._frames.get(key)
        if span is not None or self._engine is None:
            return span
        read, known = self._engine.heap.read_available, self._wasm.setdefault(instance, {})
        found = find_wasm_function(read, known, pc)
        if found is None:
            known |= read_wasm_functions(read, instance)
            found = find_wasm_function(read, known, pc)
        if len(self._wasm) > MAX_INSTANCES:
            self._wasm.clear()
        if found is None:
            return None
        span = self._wasm_spans.get(found)
        if span is None:
            if len(self._wasm_spans) >= MAX_FRAMES:
                self._wasm_spans.clear()
            start, number = found
            name = f"wasm-function[{number}]" if number >= 0 else "wasm-function"
            span = self._wasm_spans[found] = Span(start, pc + 1, JsCode(0, start, pc + 1, name=name))
        self._frames[key] = span
        return span

    def _bind_lost_code(
        self, lookup: int, function: int, bytecode: int, memory: LaneMemory, fp: int
    ) -> Span[JsCode] | None:
        """Return the description of a frame whose code V8 has replaced or moved before it could be read.

        The frame still tells which function runs. The functions that were inlined into it are not known.
        """
        assert self._engine is not None
        key = function, bytecode, -2
        span = self._frames.get(key)
        if span is None:
            if self._engine.heap.has_type(bytecode, "type_bytecode"):  # baseline code
                found = self._find_function(function, bytecode, 0, memory, fp)
            else:
                shared = self._engine.find_function_at(function)
                found = self._engine.functions.find(shared) if shared else None
            if found is None:
                return None
            start = lookup & -_CODE_PART
            span = self._remember(key, found, found.line, start, start + _CODE_PART)
        self._diagnostics.count("v8_code_gone")
        return span

    def _bind_baseline(self, code: JsCode, function: int, memory: LaneMemory, fp: int) -> Span[JsCode] | None:
        key = function, code.owner, -1
        span = self._frames.get(key)
        if span is None:
            found = self._find_function(function, code.owner, code.pointer, memory, fp)
            if found is None:
                return self._wait(key, code.pointer, code.start, code.end)
            code.name, code.function = found.name, found  # also for frames that are not linked yet
            span = self._remember(key, found, found.line, code.start, code.end)
        return span

    def _bind_interpreted(
        self, function: int, bytecode: int, offset: int, memory: LaneMemory, fp: int
    ) -> Span[JsCode] | None:
        key = function, bytecode, offset
        span = self._frames.get(key)
        if span is None:
            assert self._engine is not None
            if not self._engine.heap.has_type(bytecode, "type_bytecode"):
                return None  # a function of V8 itself
            found = self._find_function(function, bytecode, 0, memory, fp)
            start, end = self._builtins.ranges[0]
            if found is None:
                return self._wait(key, 0, start, end)
            line = self._line_of(found, bytecode, offset)
            span = self._remember(key, found, line, start, end)
        return span

    def _remember(
        self, key: tuple[int, int, int], function: JsFunction, line: int, start: int, end: int
    ) -> Span[JsCode]:
        from pyprof.runtime_code.v8.generated_code_reader import JsCode

        number = function, line, start
        span = self._numbers.get(number)
        if span is None:
            if len(self._numbers) >= MAX_FRAMES:
                self._numbers.clear()
            code = JsCode(0, start, end, name=function.name, function=function, line=line)
            span = self._numbers[number] = Span(start, end, code)
        if len(self._frames) >= MAX_FRAMES:
            self._frames.clear()
        self._frames[key] = span
        return span

    def _find_function(self, function: int, bytecode: int, code: int, memory: LaneMemory, fp: int) -> JsFunction | None:
        """Return the JavaScript function of a frame, also if the garbage collector has moved its JSFunction since the
        sample.
        """
        assert self._engine is not None
        running = bytecode, code
        shared = self._engine.find_shared(function, *running)
        below = fp + self._engine.layout.at["fp_offset"]
        for slot in () if shared else (below, below - 8):
            shared = shared or self._engine.find_shared_by_feedback(memory.word(slot) or 0, *running)
        if shared:
            if len(self._shared) >= MAX_FRAMES:
                self._shared.clear()
            self._shared[running] = shared
        elif self._engine.runs(known := self._shared.get(running, 0), *running):
            shared = known
        found = self._engine.functions.find(shared) if shared else None
        if found is None:
            self._diagnostics.count("v8_function_unreadable")
            return None
        self._name_waiting(running, found)
        return found

    def _name_waiting(self, running: tuple[int, int], function: JsFunction) -> None:
        """Store the name and lines of a function in the descriptions of frames that have its BytecodeArray or baseline
        code and got no name before.
        """
        for offset, span in self._waiting.pop(running, {}).items():
            span.value.name, span.value.function = function.name, function
            span.value.line = self._line_of(function, running[0], offset) if offset >= 0 else function.line

    def _search_scripts(self) -> None:
        """Search the functions of all known scripts for those of frames without a name, by their bytecode, and name
        these frames.
        """
        if not self._waiting or self._engine is None or time.monotonic_ns() < self._search_again_ns:
            return
        began_ns = time.thread_time_ns()  # on a busy machine the search takes much longer than that
        engine = self._engine
        lists = (read_script_list(engine.heap, slot) for slot in self._script_lists.values() if slot)
        scripts = dict.fromkeys(chain(engine.functions.scripts, *lists))
        found = find_by_bytecode(engine.heap, scripts, {bytecode for bytecode, _ in self._waiting})
        for running in list(self._waiting):
            shared = found.get(running[0], 0)
            function = engine.functions.find(shared) if engine.runs(shared, *running) else None
            if function is not None:
                self._shared[running] = shared
                self._name_waiting(running, function)
        took_ns = time.thread_time_ns() - began_ns
        self._search_again_ns = time.monotonic_ns() + max(SEARCH_REST * took_ns, MIN_SEARCH_NS)

    def _wait(self, key: tuple[int, int, int], code: int, start: int, end: int) -> Span[JsCode] | None:
        """Return a description without a name for a JavaScript frame whose function is not readable now. A later sample
        may name it.

        Until the next check, the function is not searched again, because a search for each frame would be expensive.
        """
        from pyprof.runtime_code.v8.generated_code_reader import UNREAD, JsCode

        if len(self._waiting) >= MAX_WAITING:
            return None
        _, bytecode, offset = key
        spans = self._waiting.setdefault((bytecode, code), {})
        if offset not in spans and len(spans) < MAX_WAITING:
            spans[offset] = Span(start, end, JsCode(0, start, end, name=UNREAD))
        span = spans.get(offset)
        if span is not None and len(self._frames) < MAX_FRAMES:
            self._frames[key] = span
        return span

    def _line_of(self, function: JsFunction, bytecode: int, offset: int) -> int:
        """Return the line of an interpreted JavaScript frame: the first line of the function if V8 has no source
        positions.
        """
        assert self._engine is not None
        if bytecode not in self._bytecode_lines:
            if len(self._bytecode_lines) >= MAX_FRAMES:
                self._bytecode_lines.clear()
            self._bytecode_lines[bytecode] = self._engine.bytecode_positions(bytecode)
        table = self._bytecode_lines[bytecode]
        position = table.find(offset - self._engine.layout.at["bytecode"] + 1) if table is not None else None
        line = 0
        if position is not None and function.script is not None:
            line = function.script.line_at(position.offset)
        return line or function.line


def find_code_range(space: AddressSpace, builtins: Ranges) -> tuple[int, int]:
    """Return the start and end of the memory that V8 has reserved for its generated code, (0, 0) if it is unknown.

    V8 makes more and more of this memory executable, which no event of the kernel reports. V8's built-in functions are
    mapped a second time at its end.

    Args:
        space: The address space.
        builtins: Address ranges of V8's built-in functions: in the mapping of its file, then in further mappings,
            ascending.
    """
    mapping = space.mapping_at(builtins[-1][0]) if len(builtins) > 1 else None
    if mapping is None:
        return 0, 0
    low = mapping.start - MAX_CODE_RANGE
    used = [
        other.start
        for other in space.mappings
        if not other.path and other.executable and low <= other.start < mapping.start
    ]
    return (min(used), mapping.start) if used else (0, 0)


def find_builtins(space: AddressSpace, symbols: Mapping[bytes, int]) -> Builtins:
    """Return the functions that are built into V8, with the addresses of their code in V8's file and in further
    mappings of it near V8's generated code.

    Args:
        space: The address space.
        symbols: Addresses in the process of V8's symbols.
    """
    start = symbols.get(_BLOB, 0)
    data = space.read(symbols[_BLOB_SIZE], 4) if _BLOB_SIZE in symbols else b""
    size = int.from_bytes(data, "little") if len(data) == 4 else 0
    mapping = space.mapping_at(start)
    if mapping is not None and not mapping.executable:  # V8 10 keeps the address in a variable
        start = int.from_bytes(space.read(start, 8), "little")
        mapping = space.mapping_at(start)
    if mapping is None or not 0 < size <= MAX_BUILTINS:
        return Builtins([], ())
    offset = start - mapping.start + mapping.offset
    found: set[tuple[int, int]] = set()
    for other in space.mappings:
        if other.executable and other.file == mapping.file and other.offset <= offset:
            again = other.start + offset - other.offset
            if again < other.end and again != start:
                found.add((again, min(again + size, other.end)))
    named = (
        (avma, name[len(_BUILTIN) :].decode("ascii", "replace"))
        for name, avma in symbols.items()
        if name.startswith(_BUILTIN)
    )
    functions = sorted(each for each in named if start <= each[0] < start + size)
    return Builtins(functions, ((start, start + size), *sorted(found)))
