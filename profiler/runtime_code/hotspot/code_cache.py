"""HotSpot's code cache: the blob that covers an address, and the names of stubs.

A heap of generated code is divided into segments. Its segment map has one byte for each: 0xFF for a free segment, else
the number of segments back towards the start of the block. A block begins with a header, and the blob follows.

Stubs, such as call_stub or jbyte_arraycopy, have names in the list of their descriptions (StubCodeDesc). vmStructs, the
JVM's description of its data, does not have the list. A symbol of libjvm.so, which stripped files lack, gives its
address.
"""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs

MAX_HEAPS = 16
MAX_RESERVED = 4 << 30
"""Maximum size in bytes of HotSpot's code cache. HotSpot allows 2 GiB."""
MAX_STEPS = 1 << 12
"""Maximum number of steps in a segment map of HotSpot's code cache. A step goes back by up to 254 segments."""
MAX_NAMES = 1 << 12
MAX_BLOB = 64 << 20
"""Maximum size in bytes of one piece of HotSpot's generated code (blob)."""

NMETHODS = ("nmethod", "native nmethod")
"""Names of HotSpot's blobs that are compiled methods and wrappers of native methods."""
INTERPRETER = "Interpreter"


@dataclass(frozen=True, slots=True)
class Heap:
    """One heap of HotSpot's code cache.

    Attributes:
        low: First address of the heap's memory.
        high: Address after the memory that is in use.
        limit: Address up to which the heap may grow.
        segment_map: Address of the heap's segment map.
        log2_segment: Binary logarithm of the size of a segment in bytes.
    """

    low: int
    high: int
    limit: int
    segment_map: int
    log2_segment: int


@dataclass(frozen=True, slots=True)
class Blob:
    """One piece of code that the Java virtual machine has generated.

    Attributes:
        address: Address of the CodeBlob, the structure that describes the code.
        header: The bytes of the CodeBlob, as far as they never change.
        name: Name of the blob, such as "nmethod" or "Interpreter".
        start: First address of the code.
        end: Address after the code.
        frame_size: Size in bytes of the code's frames with the return address, 0 if they have no fixed size.
        frame_complete: Offset in the code from which on the frame is complete.
        method: Address of the Method of a compiled method, else 0.
        compile_id: Number of the compilation of a compiled method, else 0.
    """

    address: int
    header: bytes
    name: str
    start: int
    end: int
    frame_size: int
    frame_complete: int
    method: int = 0
    compile_id: int = 0

    @property
    def is_nmethod(self) -> bool:
        return self.name in NMETHODS


class BlobCache:
    """A cache of the pieces of generated code in one Java process, by address."""

    def __init__(self, memory: VmMemory, structs: VmStructs) -> None:
        """Find the code heaps of a Java process.

        Raises:
            FormatError: The layout is not known, or the heaps are not readable.
        """
        self._memory = memory
        self._structs = structs
        self._names: dict[int, str] = {}
        block = structs.size("HeapBlock")
        self._block = block
        self._used = structs.offset(("HeapBlock::Header", "_used"))
        self._heap_map = structs.offset(("CodeHeap", "_segmap"))
        self._heap_memory = structs.offset(("CodeHeap", "_memory"))
        self._log2 = structs.offset(("CodeHeap", "_log2_segment_size"))
        self._low = structs.offset(("VirtualSpace", "_low"))
        self._limit = structs.offset(("VirtualSpace", "_high_boundary"))
        self._high = structs.offset(("VirtualSpace", "_high"))
        self._has_pointers = ("CodeBlob", "_code_begin") in structs.offsets
        self._header_size = max(structs.size("nmethod"), structs.size("CodeBlob"))
        self.heaps: tuple[Heap, ...] = ()
        self.reserved = (0, 0)
        """Start and end of the memory that HotSpot's code heaps may grow to."""
        self.update()

    def update(self) -> None:
        """Read the limits of HotSpot's code heaps again, because the heaps grow.

        Raises:
            FormatError: The limits are not readable.
        """
        self.heaps = tuple(self._heap(avma) for avma in self._heap_addresses())
        low, high = min(heap.low for heap in self.heaps), max(heap.limit for heap in self.heaps)
        self.reserved = (low, high) if high - low <= MAX_RESERVED else (0, 0)

    def _heap_addresses(self) -> list[int]:
        memory, structs = self._memory, self._structs
        if ("CodeCache", "_heap") in structs.statics:  # JDK 8
            return [memory.word(structs.static(("CodeCache", "_heap")))]
        array = memory.word(structs.static(("CodeCache", "_heaps")))
        length = memory.number(
            array + structs.offset(("GrowableArrayBase", "_len"), ("GenericGrowableArray", "_len")), 4
        )
        data = memory.word(array + structs.offset(("GrowableArray<int>", "_data")))
        if not 0 < length <= MAX_HEAPS:
            raise FormatError("HotSpot", array, f"a code cache of {length} heaps")
        return [memory.word(data + 8 * number) for number in range(length)]

    def _heap(self, avma: int) -> Heap:
        memory = self._memory
        space, segments = avma + self._heap_memory, avma + self._heap_map
        low, high = memory.word(space + self._low), memory.word(space + self._high)
        log2 = memory.number(avma + self._log2, 4)
        if not (low <= high and 3 <= log2 <= 16):
            raise FormatError("HotSpot", avma, "a code heap that is not plausible")
        limit = max(memory.word(space + self._limit), high)
        return Heap(low, high, limit, memory.word(segments + self._low), log2)

    def _find_heap(self, pc: int) -> Heap | None:
        return next((heap for heap in self.heaps if heap.low <= pc < heap.high), None)

    def find_blob(self, pc: int) -> Blob | None:
        """Return the piece of HotSpot's generated code (blob) at an address, or None.

        Raises:
            FormatError: The heap is not readable or not plausible.
        """
        heap = self._find_heap(pc)
        if heap is None and self.reserved[0] <= pc < self.reserved[1]:
            self.update()  # the heap has grown
            heap = self._find_heap(pc)
        if heap is None:
            return None
        segment = pc - heap.low >> heap.log2_segment
        for _ in range(MAX_STEPS):
            back = self._memory.number(heap.segment_map + segment, 1)
            if back == 0xFF:
                return None
            if back == 0:
                break
            segment -= back
            if segment < 0:
                raise FormatError("HotSpot", pc, "a segment map that leaves its heap")
        else:
            raise FormatError("HotSpot", pc, "a segment map without an end")
        block = heap.low + (segment << heap.log2_segment)
        if not self._memory.number(block + self._used, 1):
            return None
        blob = self.read_blob(block + self._block)
        return blob if blob is not None and blob.start <= pc < blob.end else None

    def read_blob(self, avma: int) -> Blob | None:
        """Return the piece of HotSpot's generated code whose CodeBlob is at an address, or None if there is none.

        Raises:
            FormatError: The CodeBlob is not readable.
        """
        header, structs = self._memory.read(avma, self._header_size), self._structs
        name_at = structs.unpack(header, "Q", ("CodeBlob", "_name"))
        name = self._names.get(name_at)
        if name is None:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            name = self._names[name_at] = self._memory.text(name_at)
        start, end = self._code(avma, header)
        size = structs.unpack(header, "i", ("CodeBlob", "_size"))
        if not (name and avma < start <= end <= avma + size and size <= MAX_BLOB):
            return None
        words = structs.unpack(header, "i", ("CodeBlob", "_frame_size"))
        # From JDK 23 on, whose code has no _code_begin, this field has two bytes.
        layout = "i" if self._has_pointers or ("nmethod", "_immutable_data") not in structs.offsets else "h"
        complete = structs.unpack(header, layout, ("CodeBlob", "_frame_complete_offset"))
        method = compile_id = 0
        if name in NMETHODS:
            method = structs.unpack(header, "Q", ("nmethod", "_method"), ("CompiledMethod", "_method"))
            compile_id = structs.unpack(header, "i", ("nmethod", "_compile_id"))
        return Blob(avma, header, name, start, end, max(words, 0) * 8, complete, method, compile_id)

    def _code(self, avma: int, header: bytes) -> tuple[int, int]:
        """Return (start, end) of the code in a HotSpot CodeBlob."""
        unpack = self._structs.unpack
        if self._has_pointers:
            return unpack(header, "Q", ("CodeBlob", "_code_begin")), unpack(header, "Q", ("CodeBlob", "_code_end"))
        code, data = (unpack(header, "i", ("CodeBlob", name)) for name in ("_code_offset", "_data_offset"))
        return avma + code, avma + data


STUB_LIST = b"_ZN12StubCodeDesc5_listE"
"""Symbol of the word with the address of the first description of a stub (StubCodeDesc::_list)."""
MAX_STUBS = 1 << 13
"""Maximum number of HotSpot's stubs. JDK 26 has about 500."""
_MAX_NAME = 128
_GENERATOR, _SUFFIX = "Stub Generator ", "_stub"
"""Prefix and suffix of the names of HotSpot's stubs from JDK 26 on."""

_LAYOUT = struct.Struct("<6Q")
"""Words of a StubCodeDesc: next, group, name, [index up to JDK 10], begin, end."""


@dataclass(frozen=True, slots=True)
class HotspotStub:
    """One stub of HotSpot.

    Attributes:
        start: First address of its code.
        end: Address after its code.
        name: Name of the stub in HotSpot's sources.
    """

    start: int
    end: int
    name: str


def read_stubs(memory: VmMemory, list_avma: int, start: int, end: int) -> tuple[HotspotStub, ...]:
    """Return the stubs in a piece of HotSpot's code, ascending. Unreadable descriptions end the list.

    Args:
        memory: Memory of the process.
        list_avma: Address of the word that STUB_LIST names.
        start: First address of the code.
        end: Address after the code.
    """
    found: list[HotspotStub] = []
    try:
        at = memory.word(list_avma)
        for _ in range(MAX_STUBS):
            if not at:
                break
            at, _, name, *words = _LAYOUT.unpack(memory.read(at, _LAYOUT.size))
            low, high = words[:2] if words[0] > 0xFFFF_FFFF else words[1:]
            if start <= low < high <= end:
                found.append(HotspotStub(low, high, _show(memory.text(name, _MAX_NAME))))
    except FormatError:
        pass
    return tuple(sorted((stub for stub in found if stub.name.isprintable() and stub.name), key=lambda stub: stub.start))


def _show(name: str) -> str:
    """Return the name of a HotSpot stub in the form that versions before JDK 26 use."""
    return name.removeprefix(_GENERATOR).removesuffix(_SUFFIX) if name.startswith(_GENERATOR) else name
