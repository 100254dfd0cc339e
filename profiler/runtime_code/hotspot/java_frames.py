"""One Java virtual machine whose layout is known: its code, the rules of its frames, and the methods of its frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import Walk
from pyprof.runtime_code.hotspot.active_inlined_methods import SampledScopes
from pyprof.runtime_code.hotspot.code_cache import (
    INTERPRETER,
    MAX_BLOB,
    STUB_LIST,
    Blob,
    BlobCache,
    HotspotStub,
    read_stubs,
)
from pyprof.runtime_code.hotspot.methods import InlineScopes, JavaMethod, Methods, read_scopes
from pyprof.runtime_code.hotspot.unwind_rules import Codelet, FrameRules
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs, find_structs, read_flag
from pyprof.unwind.rules import FunctionRows
from pyprof.unwind.sample_memory import LaneMemory, read_words

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

MAX_LISTED = 1 << 18
MAX_CODELETS = 1 << 12
MAX_EXAMINED = 32
"""Maximum number of compiled methods that are examined to find out whether the Java virtual machine writes debugging
information between safepoints.
"""
MAX_FRAME_WORDS = 1 << 14
"""Maximum size in words of an interpreter frame of Java. Its operand stack has at most 65,535 words, in practice a
few.
"""
MAX_FRAMES = 1 << 14
"""Maximum number of interpreter frames of Java whose place on the stack is cached."""
FRAMELESS = ("vtable chunks", "flush_icache_")
"""Prefixes of the names of HotSpot's code blobs whose code never moves sp."""
STUBS = "StubRoutines"
"""Prefix of the names of those HotSpot code blobs that contain the runtime's stubs, such as call_stub."""
MANY_STUBS = (STUBS, "MethodHandles adapters")
"""Prefixes of the names of those HotSpot code blobs that contain several stubs, each with a separate name."""
CALL_STUB = "call_stub"
"""Name in HotSpot's sources of the stub through which native code calls Java."""

RETURN_BARRIER = "cont_returnBarrier"
"""Name in HotSpot's sources of the stub to which a frame of a virtual thread returns while its callers are frozen on
the heap.
"""
_ENTRY_SIZE = 64
"""Size of a ContinuationEntry in bytes in the versions that do not state it (JDK 19 to 23)."""

MAX_ENTRY = 112
"""Maximum size of a ContinuationEntry in bytes."""

_METHOD_SLOT, _FIRST_BYTECODE_SLOT = -24, -64
"""Offsets of the Method and, from JDK 9 on, of the bytecode pointer in an interpreter frame of Java, relative to
rbp.
"""

Place = tuple[str, str | None, int]
"""(name, source file, line) of one Java method in a stack."""


@dataclass(eq=False)
class JavaCode:
    """A piece of generated Java code, and everything that was read about it.

    Attributes:
        blob: The code blob.
        name: Name of the method or stub.
        file: Source file of the method, "" if unknown.
        rows: Unwind rules of the code, None if it has none.
        scopes: Debugging information of the code, None if it has none.
        sampled: The methods that the debugging information proves at lookup pcs, None if it has none.
        line: Line of an interpreted method, 0 if it is unknown or differs between addresses.
        stubs: Stubs in the code with their names, ascending.
        filled: The unwind rules and debugging information of a compiled method were read.
        places: The active methods at each lookup pc that occurred in a sample, the innermost first.
    """

    blob: Blob
    name: str
    file: str = ""
    rows: FunctionRows | None = None
    scopes: InlineScopes | None = None
    sampled: SampledScopes | None = None
    line: int = 0
    stubs: tuple[HotspotStub, ...] = ()
    filled: bool = False
    places: dict[int, tuple[Place, ...]] = field(default_factory=dict)

    @property
    def has_parts(self) -> bool:
        """True if addresses in this Java code have different names."""
        return self.blob.is_nmethod or bool(self.stubs)

    def name_at(self, pc: int) -> str:
        """Return the name of the stub at a lookup pc in Java code, or the name of the whole code if no stub is known
        there.
        """
        at = bisect_right(self.stubs, pc, key=lambda stub: stub.start) - 1
        return self.stubs[at].name if at >= 0 and pc < self.stubs[at].end else self.name


class JavaVm:
    """A Java virtual machine (HotSpot) whose data layout is known."""

    def __init__(self, space: AddressSpace, symbols: Mapping[bytes, int], arch: Arch) -> None:
        """Read the layout of HotSpot's data from the description that the virtual machine exports.

        Raises:
            FormatError: The layout is not readable or not known.
        """
        self.memory = VmMemory(space.read)
        self.structs: VmStructs = find_structs(space.read, symbols)
        self.cache = BlobCache(self.memory, self.structs)
        self.methods = Methods(self.memory, self.structs)
        self.interpreter: Blob | None = None
        self._has_dense_flag = read_flag(self.memory, self.structs, "DebugNonSafepoints")
        self._arch = arch
        self._stub_list = symbols.get(STUB_LIST, 0)
        self._frames = FrameRules(arch)
        self._frames_at: dict[tuple[int, int, int], int] = {}
        self._codelets: list[Codelet] | None = None
        self._part_rows: dict[int, FunctionRows | None] = {}
        self._continuations: dict[int, tuple[list[int], list[FunctionRows]]] = {}
        self._entry_size = min(self.structs.sizes.get("ContinuationEntry", _ENTRY_SIZE), MAX_ENTRY)
        self._thawed = self._frames.thawed(self._entry_size, self.cache.reserved)
        self._call_stub_return = self._static_word(("StubRoutines", "_call_stub_return_address"))
        self.bytecode_slot = _FIRST_BYTECODE_SLOT + 8 * (self.methods.version < 9)
        self._r13 = arch.registers.index("r13")
        self._rbx = arch.registers.index("rbx")

    def _static_word(self, name: tuple[str, str]) -> int:
        try:
            return self.memory.word(self.structs.static(name))
        except FormatError:
            return 0

    def is_current(self, blob: Blob) -> bool:
        """Return True if a piece of HotSpot's generated code is unchanged since pyprof has read it.

        Raises:
            FormatError: The code cache is not readable.
        """
        if self.memory.read(blob.address, len(blob.header)) == blob.header:
            return True
        now = self.cache.read_blob(blob.address)
        same = now is not None and (now.name, now.start, now.end) == (blob.name, blob.start, blob.end)
        return same and now is not None and (now.method, now.compile_id) == (blob.method, blob.compile_id)

    def read_code(self, pc: int) -> JavaCode | None:
        """Return the description of HotSpot's generated code at an address, or None if there is none."""
        try:
            blob = self.cache.find_blob(pc)
        except FormatError:
            return None
        if blob is None:
            return None
        if blob.name == INTERPRETER:
            self.interpreter = blob
        if not blob.is_nmethod:
            places: dict[int, tuple[Place, ...]] = {self._call_stub_return - 1: ((CALL_STUB, None, 0),)}
            if blob.name.startswith(STUBS):
                places |= {avma - 1: ((RETURN_BARRIER, None, 0),) for avma in self._find_continuations(blob)[0]}
            is_listed = self._stub_list and blob.name.startswith(MANY_STUBS)
            stubs = read_stubs(self.memory, self._stub_list, blob.start, blob.end) if is_listed else ()
            return JavaCode(blob, blob.name, rows=self._stub_rows(blob), stubs=stubs, places=places)
        method = self.methods.find(blob.method)
        return JavaCode(blob, method.name, method.file) if method is not None else JavaCode(blob, blob.name)

    def list_code(self) -> Iterator[JavaCode]:
        """Yield all code of HotSpot's heaps, for inspection, or the first MAX_LISTED pieces and segments.

        Raises:
            FormatError: The heaps are not readable.
        """
        left = MAX_LISTED
        for heap in self.cache.heaps:
            pc = heap.low
            while pc < heap.high and left > 0:
                left -= 1
                code = self.read_code(pc)
                if code is not None:
                    yield code
                pc = code.blob.end if code is not None else pc + (1 << heap.log2_segment)

    def describe_interpreted(self, method: JavaMethod, line: int) -> JavaCode:
        """Return the JavaCode that describes interpreter frames of a Java method at one source line."""
        assert self.interpreter is not None
        return JavaCode(self.interpreter, method.name, method.file, line=line)

    def fill(self, code: JavaCode) -> None:
        """Read the unwind rules and the debugging information of a compiled Java method into its description, if that
        was not done before.
        """
        blob = code.blob
        if code.filled or not blob.is_nmethod:
            return
        code.filled = True
        try:
            content = self.memory.read(blob.start, min(blob.end - blob.start, MAX_BLOB))
            entry = self.structs.unpack(blob.header, "Q", ("nmethod", "_osr_entry_point"))
            code.rows = self._frames.compiled(blob, content, entry)
            code.scopes = read_scopes(self.memory, self.structs, blob, self.methods.excludes_zero)
            code.sampled = SampledScopes(code.scopes, content, self._has_dense_flag)
        except FormatError:
            pass

    def has_dense_scopes(self, codes: Sequence[JavaCode]) -> bool:
        """Return True if one of the last compiled methods has debugging information between safepoints, or if there is
        no compiled method.
        """
        methods = [code for code in codes if code.blob.is_nmethod][-MAX_EXAMINED:]
        for code in methods:
            self.fill(code)
        return not methods or any(code.sampled.is_dense for code in methods if code.sampled is not None)

    def _stub_rows(self, blob: Blob) -> FunctionRows | None:
        rules = self._frames
        if blob.name == "I2C/C2I adapters":
            return rules.adapter(blob, self._code(blob.start, blob.end))
        if blob.name.startswith(FRAMELESS):
            return FunctionRows(blob.start, blob.end, (blob.start,), (rules.entered,))
        return None

    def _code(self, start: int, end: int) -> bytes:
        try:
            return self.memory.read(start, min(end - start, MAX_BLOB))
        except FormatError:
            return b""

    def rows(self, code: JavaCode, pc: int, exact: bool) -> FunctionRows | None:
        """Return the unwind rows of Java code that cover a lookup pc, or None."""
        blob = code.blob
        if blob.is_nmethod and not exact and blob.frame_size >= 16:
            # stubs replace a return address by that of an exception handler, which may stand behind an epilogue
            return FunctionRows(blob.start, blob.end, (blob.start,), (self._frames.sized(blob.frame_size),))
        self.fill(code)
        if code.rows is not None or blob.is_nmethod:
            return code.rows
        if blob.name == INTERPRETER:
            if not exact:
                return FunctionRows(blob.start, blob.end, (blob.start,), (self._frames.interpreted,))
            return self._codelet(pc)
        if not exact and pc + 1 == self._call_stub_return:
            return FunctionRows(pc, pc + 1, (pc,), (self._frames.call_stub,))
        if blob.name.startswith(STUBS):
            returns, parts = self._find_continuations(blob)
            if not exact and pc + 1 in returns:
                return FunctionRows(pc, pc + 1, (pc,), (self._thawed,))
            return next((rows for rows in (self._barrier(blob), *parts) if rows and rows.start <= pc < rows.end), None)
        if not exact:
            if blob.frame_size < 16:
                return None
            return FunctionRows(blob.start, blob.end, (blob.start,), (self._frames.sized(blob.frame_size),))
        if blob.start not in self._part_rows:
            self._part_rows[blob.start] = self._frames.stub(blob, self._code(blob.start, blob.end))
        return self._part_rows[blob.start]

    def _find_continuations(self, blob: Blob) -> tuple[list[int], list[FunctionRows]]:
        """Return the addresses and unwind rows of the stubs in a blob that thaw frames of virtual threads (see
        FrameRules.continuations).
        """
        found = self._continuations.get(blob.start)
        if found is None:
            code = self._code(blob.start, blob.end)
            found = self._continuations[blob.start] = self._frames.continuations(blob, code, self._entry_size)
        return found

    def _barrier(self, blob: Blob) -> FunctionRows | None:
        """Return the unwind rows of the entry barrier, a stub that compiled Java methods call while the garbage
        collector works. None if the blob does not contain it.
        """
        if blob.start not in self._part_rows:
            self._part_rows[blob.start] = self._frames.entry_barrier(blob, self._code(blob.start, blob.end))
        return self._part_rows[blob.start]

    def _codelet(self, pc: int) -> FunctionRows | None:
        codelet = self.find_codelet(pc)
        if codelet is None:
            return None
        if codelet.start not in self._part_rows:
            rows = self._frames.codelet(codelet, self._code(codelet.start, codelet.end))
            self._part_rows[codelet.start] = rows
        return self._part_rows[codelet.start]

    def find_codelet(self, pc: int) -> Codelet | None:
        """Return the part of HotSpot's interpreter at an address, or None."""
        if self._codelets is None:
            try:
                self._codelets = self._read_codelets()
            except FormatError:
                self._codelets = []
        at = bisect_right(self._codelets, pc, key=lambda codelet: codelet.start) - 1
        return self._codelets[at] if at >= 0 and pc < self._codelets[at].end else None

    def _read_codelets(self) -> list[Codelet]:
        memory, offset = self.memory, self.structs.offset
        queue = self._static_word(("AbstractInterpreter", "_code"))
        buffer = memory.word(queue + offset(("StubQueue", "_stub_buffer")))
        begin, end = (memory.number(queue + offset(("StubQueue", name)), 4) for name in ("_queue_begin", "_queue_end"))
        header, size_at = self.structs.size("InterpreterCodelet"), offset(("InterpreterCodelet", "_size"))
        name_at = offset(("InterpreterCodelet", "_description"))
        found: list[Codelet] = []
        at, until = buffer + begin, buffer + min(end, MAX_BLOB)
        while at < until and len(found) < MAX_CODELETS:
            size = memory.number(at + size_at, 4)
            if not header < size <= until - at:
                break
            found.append(Codelet(at + header, at + size, memory.text(memory.word(at + name_at))))
            at += size
        return found

    def find_method(self, batch: SampleBatch, walk: Walk, lane: int, at: int, memory: LaneMemory) -> tuple[int, int]:
        """Return (address of the Method, bytecode pointer) of an interpreter frame of Java, (0, 0) if they are unknown.

        The frame is found by its contents: the return address into its caller and, two words below, the caller's sp.
        """
        innermost = at == int(walk.start[lane])
        fp = 0
        if innermost:
            pc = int(walk.pc[at])
            rows = self._codelet(pc)
            rule = rows.rules[bisect_right(rows.starts, pc) - 1] if rows is not None else None
            if rule != self._frames.interpreted:
                codelet = self.find_codelet(pc)
                begins = codelet is not None and codelet.name.startswith("method entry")
                return (int(batch.regs[lane, self._rbx]), 0) if begins else (0, 0)
            fp = int(batch.regs[lane, self._arch.fp])
        elif at + 1 < int(walk.start[lane + 1]):
            fp = self._find_frame(memory, int(walk.sp[at]), int(walk.pc[at + 1]), int(walk.sp[at + 1]))
        method = memory.word(fp + _METHOD_SLOT) if fp else None
        pointer = memory.word(fp + self.bytecode_slot) if fp else None
        if innermost and (r13 := int(batch.regs[lane, self._r13])) > 0 and pointer and abs(r13 - pointer) < 1 << 16:
            pointer = r13
        return method or 0, pointer or 0

    def find_methods(self, batch: SampleBatch, walk: Walk, lanes: I64, frames: I64) -> list[tuple[int, int]]:
        """Return (address of the Method, bytecode pointer) of each of several interpreter frames of Java, (0, 0) where
        they are unknown.

        Args:
            batch: The samples.
            walk: The unwound frames of the samples.
            lanes: Sample of each frame.
            frames: Index of each frame in `walk`.
        """
        known = self._frames_at
        callers = np.minimum(frames + 1, len(walk.pc) - 1)
        sp, caller, caller_sp = walk.sp[frames], walk.pc[callers], walk.sp[callers]
        keys = zip(sp.tolist(), caller.tolist(), caller_sp.tolist(), strict=True)
        fp = np.array([known.get(key, 0) for key in keys], np.uint64)
        words = read_words(batch, lanes, [fp + _offset(at) for at in (8, -8, _METHOD_SLOT, self.bytecode_slot)])
        same = (words[0] == caller) & (words[1] == caller_sp) & (fp != 0)
        same &= (frames > walk.start[lanes]) & (frames + 1 < walk.start[lanes + 1])
        found: list[tuple[int, int]] = list(zip(words[2].tolist(), words[3].tolist(), strict=True))
        for at in np.flatnonzero(~same).tolist():
            lane = int(lanes[at])
            found[at] = self.find_method(batch, walk, lane, int(frames[at]), LaneMemory(batch, lane))
        return found

    def _find_frame(self, memory: LaneMemory, sp: int, caller: int, caller_sp: int) -> int:
        """Return the rbp of an interpreter frame of Java, or 0, from an earlier sample if the frame is still there."""
        key = sp, caller, caller_sp
        known = self._frames_at.get(key, 0)
        if known and memory.word(known + 8) == caller and memory.word(known - 8) == caller_sp:
            return known
        found = search_frame(memory, *key)
        if found:
            if len(self._frames_at) >= MAX_FRAMES:
                self._frames_at.clear()
            self._frames_at[key] = found
        return found


def _offset(number: int) -> np.uint64:
    """Convert a signed offset to uint64, so that adding it to an address gives the right address modulo 2**64."""
    return np.uint64(number & (1 << 64) - 1)


def search_frame(memory: LaneMemory, sp: int, caller: int, caller_sp: int) -> int:
    """Return the rbp of an interpreter frame of Java, which is searched on the stack, or 0.

    Args:
        memory: Memory of the sample.
        sp: The frame's stack pointer.
        caller: The frame's return address.
        caller_sp: The caller's stack pointer.
    """
    # A linker of method handles (MethodHandle.linkToStatic) removes one argument after it noted the caller's sp.
    first, words = memory.words(sp, min((caller_sp - sp) // 8 + 2, MAX_FRAME_WORDS) if caller_sp > sp else 0)
    found: npt.NDArray[np.int64] = np.flatnonzero(words == np.uint64(caller))
    for place in found.tolist():
        if place >= 2 and int(words[place - 2]) == caller_sp:
            return int(first + 8 * (place - 1))
    return 0
