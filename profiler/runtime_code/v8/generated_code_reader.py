"""One V8 whose layout is known: its generated code, the functions of its frames, and calls in stack copies.

Each frame of V8's code begins with the frame pointer of its caller, and the return address is above that. So a word of
a stack copy that is an address in V8's code has the frame pointer of that code below it. Such calls are found before
the batch is unwound. A word that an earlier call left behind looks alike. So the calls that are found only decide what
is read in advance; they do not become frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace
from pyprof.model.sample_batch import SampleBatch
from pyprof.runtime_code.base import Ranges
from pyprof.runtime_code.v8.functions import MAX_DEPTH, JsFunction, JsFunctions, JsPositionTable, unpack_position
from pyprof.runtime_code.v8.heap import V8Heap, V8Layout, read_layout, smi
from pyprof.runtime_code.v8.unwind_rules import V8FrameRules
from pyprof.unwind.rules import FunctionRows

MAX_CODE = 8 << 20
"""Maximum distance in bytes from an address back to the start of its piece of V8's generated code."""
MAX_TABLE = 1 << 20
"""Maximum size in bytes of V8's table of source positions of one function or piece of code."""
MAX_LITERALS = 1 << 14
MAX_POSITIONS = 1 << 16
_ALIGNMENT = 64
_FIRST_BLOCK = 4096
_MAX_BLOCK = 1 << 18
_FEEDBACK_SHARED = 24
"""Offset in a V8 FeedbackVector of the SharedFunctionInfo of its function, in V8 10.2 to 13.6. The object there is
checked before it is used.
"""
_FUNCTION_TYPES = 40
"""Number of consecutive instance types that V8 uses for functions. There are many, because V8 has separate types for
built-in constructors.
"""

BUILTIN = 2
"""V8's kind of code for functions that are built into V8."""
_REGEXP = 3
"""V8's kind of code for compiled regular expressions."""
UNREAD = "(unread function)"
"""Name shown for baseline code of V8 whose function was not readable in any sample."""
REGEXP = "(RegExp)"
"""Name shown for V8's code of regular expressions."""

Place = tuple[str, str | None, int]
"""Name, source file and line of one JavaScript function."""


@dataclass(eq=False)
class JsCode:
    """A piece of V8's generated code, or a kind of frame, and everything that was read about it.

    Attributes:
        pointer: Tagged pointer to the Code object, 0 for a kind of frame whose function the stack copy gave.
        start: Address of the first instruction.
        end: Address after the last instruction.
        kind: V8's number of the kind of code, such as baseline.
        name: Name of the function, "" if it is not known.
        function: The function to which the code belongs, None if the code does not state it (baseline code).
        owner: The BytecodeArray of baseline code, else 0.
        positions: Source positions by offset.
        inlined: For each inlined function, its SharedFunctionInfo and the packed position of its call.
        places: Functions at each lookup pc that occurred in a sample, the innermost first.
        line: Source line of a frame whose function the stack copy gave.
        rows: Unwind rules of the code, None if they are not known.
        filled: The unwind rules were searched, perhaps without success.
    """

    pointer: int
    start: int
    end: int
    kind: int = 0
    name: str = ""
    function: JsFunction | None = None
    owner: int = 0
    positions: JsPositionTable | None = None
    inlined: tuple[tuple[int, int], ...] = ()
    places: dict[int, tuple[Place, ...]] = field(default_factory=dict)
    line: int = 0
    rows: FunctionRows | None = None
    filled: bool = False


class V8Engine:
    """A V8 whose data layout is known."""

    def __init__(self, space: AddressSpace, symbols: Mapping[bytes, int]) -> None:
        """Read the layout of V8's data.

        Raises:
            FormatError: The layout is not readable or not known.
        """
        self.layout: V8Layout = read_layout(space.read, symbols)
        self.heap = V8Heap(space.read, self.layout)
        self.functions = JsFunctions(self.heap)

    def renew(self, space: AddressSpace) -> None:
        """Read V8's memory through the current address space of the process from now on."""
        self.heap.renew(space.read)

    def begin_check(self) -> None:
        """Begin a new check of cached data: functions and types are read again before they are used, because the
        garbage collector may have moved them meanwhile.
        """
        self.functions.epoch += 1
        self.heap.forget_types()

    def read_code(self, pc: int, low: int) -> JsCode | None:
        """Return what V8 states about its generated code at an address, or None.

        Args:
            pc: The address.
            low: First address of the mapping.
        """
        try:
            found = self._find_stream(pc, low)
            return None if found is None else self._describe(found)
        except FormatError:
            return None

    def _find_stream(self, pc: int, low: int) -> int | None:
        """Return the address of the V8 heap object (InstructionStream) whose instructions contain a pc, or None. Its
        beginning is searched backwards from the pc.
        """
        code = self.layout.code
        high = pc // _ALIGNMENT * _ALIGNMENT - code.header + 8  # instructions are aligned
        low = max(low, pc - MAX_CODE)
        size = _FIRST_BLOCK
        while high > low:
            start = max(high - size, low)
            data = self.heap.read_available(start, high - start)
            if len(data) < 8:
                return None
            first = -(start + code.header) % _ALIGNMENT
            words = np.frombuffer(data[first : first + (len(data) - first) // 8 * 8], "<u8")[:: _ALIGNMENT // 8]
            places = np.flatnonzero((words & np.uint64(3) == 1) & (words < np.uint64(1 << 47)))
            for place in reversed(places.tolist()):
                avma = start + first + place * _ALIGNMENT
                if self.heap.has_type(avma | 1, "type_stream"):
                    end = avma + code.header + self._size(avma)
                    return avma if pc < end else None
            high, size = start + 8 if start > low else low, min(2 * size, _MAX_BLOCK)
        return None

    def _code_of(self, stream: int) -> int:
        """Return the tagged pointer to the V8 Code object that belongs to an object with instructions
        (InstructionStream).
        """
        return self.heap.field(stream, self.layout.code.code) if self.layout.code.code else stream | 1

    def _size(self, stream: int) -> int:
        code = self._code_of(stream)
        if not self.heap.has_type(code, "type_code"):
            raise FormatError("V8", stream, "instructions without a description")
        return min(self.heap.number((code & ~3) + self.layout.code.size), MAX_CODE)

    def _describe(self, stream: int) -> JsCode | None:
        heap, layout = self.heap, self.layout
        pointer = self._code_of(stream)
        start = stream + layout.code.header
        kind = heap.number((pointer & ~3) + layout.code.flags) & 15
        code = JsCode(pointer, start, start + self._size(stream), kind)
        data = heap.field(pointer, layout.code.deoptimization)
        baseline, maglev, turbofan = layout.code.kinds
        if kind == _REGEXP:
            code.name = REGEXP
        elif kind == baseline:
            code.name, code.owner = UNREAD, heap.bytecode_of(data)
        elif kind in (maglev, turbofan):
            with suppress(FormatError):
                self._read_optimized(code, data)
            with suppress(FormatError):
                code.positions = JsPositionTable(heap.byte_array(heap.field(pointer, layout.code.positions), MAX_TABLE))
        else:  # a copy of a function of V8
            return None
        return code

    def _read_optimized(self, code: JsCode, data: int) -> None:
        """Read the functions of optimised JavaScript code from V8's deoptimisation data."""
        heap, at = self.heap, self.layout.at
        words = np.frombuffer(heap.array(data, at["inlining_positions"] + 1), "<u8").tolist()
        if len(words) <= at["inlining_positions"]:
            return
        code.function = self.functions.find(self._unwrap(words[at["own_wrapper"] or at["own_function"]]))
        code.name = code.function.name if code.function is not None else ""
        count = smi(words[at["inlined_count"]]) or 0
        table = heap.byte_array(words[at["inlining_positions"]], 16 * MAX_POSITIONS)
        literals = np.frombuffer(heap.array(words[at["literals"]], min(count, MAX_LITERALS)), "<u8").tolist()
        rows = np.frombuffer(table[: len(table) // 16 * 16], "<u8").reshape(-1, 2).tolist()
        code.inlined = tuple(
            (literals[number] & ~2 if (number := second & 0xFFFFFFFF) < len(literals) else 0, first)
            for first, second in rows
        )

    def _unwrap(self, pointer: int) -> int:
        """Return the SharedFunctionInfo in a V8 wrapper object, or the object itself."""
        if self.heap.has_type(pointer, "type_wrapper"):
            return self.heap.field(pointer, 8)
        return pointer & ~2

    def find_places(self, code: JsCode, pc: int) -> tuple[Place, ...]:
        """Return the JavaScript functions that are active at a lookup pc of optimised code, the innermost inlined one
        first.
        """
        if code.function is None:
            return ()
        position = code.positions.find(pc - code.start) if code.positions is not None else None
        found: list[Place] = []
        while position is not None and 0 <= position.inlining < len(code.inlined) and len(found) < MAX_DEPTH:
            pointer, call = code.inlined[position.inlining]
            function = self.functions.find(pointer) if pointer else None
            if function is None:
                break
            found.append(place_of(function, position.offset))
            position = unpack_position(call)
        offset = position.offset if position is not None and position.inlining < 0 else -1
        return (*found, place_of(code.function, offset))

    def make_rows(self, code: JsCode, rules: V8FrameRules) -> FunctionRows | None:
        """Return the unwind rows of a piece of V8's generated code, None if they are not known."""
        try:
            content = self.heap.read(code.start, code.end - code.start)
        except FormatError:
            return None
        if code.kind == BUILTIN:
            return rules.builtin(code.name, code.start, content)
        return None if code.kind == _REGEXP else rules.compiled(code.start, content)

    def is_current(self, code: JsCode) -> bool:
        """Return True if a piece of V8's generated code is still at the address at which it was read."""
        if code.kind == BUILTIN:
            return True
        try:
            stream = code.start - self.layout.code.header
            return (
                self.heap.has_type(stream | 1, "type_stream")
                and self._code_of(stream) == code.pointer
                and stream + self.layout.code.header + self._size(stream) == code.end
            )
        except FormatError:
            return False

    def find_shared(self, pointer: int, bytecode: int, code: int) -> int:
        """Return the SharedFunctionInfo of the function that runs in a frame, or 0 if that function is not certain.

        Args:
            pointer: The JSFunction that the frame holds. The garbage collector may have moved it since.
            bytecode: The BytecodeArray that runs in the frame, 0 if that is not known.
            code: The baseline code that runs in the frame, 0 if there is none.
        """
        shared = self.find_function_at(pointer)
        return shared if shared and self.runs(shared, bytecode, code) else 0

    def find_function_at(self, pointer: int) -> int:
        """Return the SharedFunctionInfo of the JSFunction that is at an address now, or 0 if there is none.

        The garbage collector may have put another function there since the frame was sampled.
        """
        heap, at = self.heap, self.layout.at
        try:
            pointer = heap.resolve(pointer)
            kind = heap.type_of(pointer) - at["type_function"]
            if not 0 <= kind < _FUNCTION_TYPES:
                return 0
            shared = heap.resolve(heap.field(pointer, at["shared"]))
            return shared if heap.type_of(shared) == at["type_shared"] else 0
        except FormatError:
            return 0

    def find_shared_by_feedback(self, vector: int, bytecode: int, code: int) -> int:
        """Return the SharedFunctionInfo that a frame's FeedbackVector states, or 0 if that function does not have the
        bytecode or code that runs in the frame.

        Some frames hold this vector, which the garbage collector hardly ever moves.
        """
        try:
            shared = self.heap.field(vector, _FEEDBACK_SHARED) if vector & 3 == 1 else 0
        except FormatError:
            return 0
        return shared if self.runs(shared, bytecode, code) else 0

    def runs(self, shared: int, bytecode: int, code: int) -> bool:
        """Return True if a JavaScript function (SharedFunctionInfo) has this BytecodeArray or this baseline code."""
        heap, at = self.heap, self.layout.at
        try:
            if not shared or heap.type_of(shared) != at["type_shared"]:
                return False
            data = heap.field(shared, at["function_data"])
            return data == code or (bytecode != 0 and heap.bytecode_of(data) == bytecode)
        except FormatError:
            return False

    def bytecode_positions(self, bytecode: int) -> JsPositionTable | None:
        """Return the source positions of a BytecodeArray, None if V8 has not made them or they are not readable."""
        heap = self.heap
        try:
            table = heap.field(bytecode, self.layout.code.bytecode_positions)
            if not heap.has_type(table, "type_byte_array") and not heap.has_type(table, "type_trusted_bytes"):
                return None
            return JsPositionTable(heap.byte_array(table, MAX_TABLE))
        except FormatError:
            return None


def place_of(function: JsFunction, offset: int) -> Place:
    """Return the source place of a JavaScript function at a position of its script: with the line where the function
    begins if the position is unknown.
    """
    if function.script is None:
        return function.name, None, 0
    line = function.script.line_at(offset) or function.line
    return function.name, function.script.name or None, line


U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_FUNCTION, _OFFSET = -2, -5
"""Distances in words from the frame pointer of a V8 frame: to the JSFunction, and to the bytecode offset of an
interpreted frame, in V8 10.2 to 13.6.
"""
_NEAR = 1 << 28
"""Maximum distance in bytes between ranges of code that are searched as one."""


class StackCall(NamedTuple):
    """A call from V8's generated code that a stack copy shows, or the code that was running.

    Attributes:
        lookup: Lookup pc in the code: one byte before the return address, or the pc itself.
        function: The word of the frame that holds the function, 0 if the frame is not in the stack copy.
        offset: The word of the frame that holds the place in an interpreted function.
        lane: Index of a sample with the call.
        fp: Frame pointer of the code, 0 if it is not in the stack copy.
    """

    lookup: int
    function: int
    offset: int
    lane: int
    fp: int


def find_calls(batch: SampleBatch, space: AddressSpace, known: Ranges) -> list[StackCall]:
    """Return the different calls from V8's generated code that the stack copies of an address space's samples show.

    Args:
        batch: The samples.
        space: The address space.
        known: Address ranges of V8's built-in code in mapped files, and of the memory that V8 has reserved for code.
    """
    made = [(mapping.start, mapping.end) for mapping in space.mappings if mapping.executable and not mapping.path]
    others = [part for part in made if not any(start <= part[0] < end for start, end in known)]
    ranges = sorted((*others, *known))
    slab = batch.stack
    lanes = np.flatnonzero((batch.space == space.id) & (slab.base % np.uint64(8) == 0))
    if not ranges or not len(lanes) or len(slab.data) < 8:
        return []
    lanes = lanes[np.argsort(slab.offset[lanes], kind="stable")]
    first = slab.offset[lanes] // 8
    words = slab.data[: len(slab.data) // 8 * 8].view("<u8")
    at = _find_addresses(words, ranges)
    place = np.searchsorted(first, at, side="right") - 1
    inside = (place >= 0) & (at > first[place]) & (at < first[place] + slab.size[lanes[place]] // 8)
    at, place = at[inside], place[inside]
    lookup, fp = words[at] - np.uint64(1), words[at - 1]
    running = _within(batch.regs[lanes, batch.arch.pc], ranges)
    lookup = np.concatenate([lookup, batch.regs[lanes[running], batch.arch.pc]])
    fp = np.concatenate([fp, batch.regs[lanes[running], batch.arch.fp]])
    place = np.concatenate([place, running])
    lane = lanes[place]
    slot = first[place] + ((fp - slab.base[lane]) // np.uint64(8)).astype(np.int64)
    last = first[place] + slab.size[lane] // 8 - 2
    known = (fp % np.uint64(8) == 0) & (fp >= slab.base[lane]) & (slot + _OFFSET >= first[place]) & (slot <= last)
    slot = np.where(known, slot, -_OFFSET)
    zero = np.uint64(0)
    held = [np.where(known, words[np.minimum(slot + off, len(words) - 1)], zero) for off in (_FUNCTION, _OFFSET)]
    columns = (lookup, *held, lane, np.where(known, fp, zero))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return list({row[:3]: StackCall(*row) for row in rows}.values())


def _find_addresses(words: U64, ranges: Ranges) -> I64:
    """Return the indexes of the stack words that are addresses in one of several ranges, which must be ascending."""
    groups = [list(ranges[0])]
    for start, end in ranges[1:]:
        if start - groups[-1][1] < _NEAR:
            groups[-1][1] = max(groups[-1][1], end)
        else:
            groups.append([start, end])
    near = np.zeros(len(words), np.bool_)
    for start, end in groups:
        near |= (words >= np.uint64(start)) & (words < np.uint64(end))
    at = np.flatnonzero(near)
    return at[_within(words[at], ranges)]


def _within(addresses: U64, ranges: Ranges) -> I64:
    """Return the indexes of the addresses that lie in one of several ranges, which must be ascending."""
    starts, ends = np.array(ranges, np.uint64).T
    place = np.searchsorted(starts, addresses, side="right") - 1
    return np.flatnonzero((place >= 0) & (addresses < ends[place]))
