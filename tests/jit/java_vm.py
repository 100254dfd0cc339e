"""A made Java virtual machine: memory with the tables, the code cache and a method as HotSpot 17 lays them out."""

from __future__ import annotations

import struct
from contextlib import suppress

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.runtime_code.hotspot.java_frames import JavaVm
from pyprof.runtime_code.hotspot.vm_structs import FIELDS, INTS, SYMBOLS, TYPES
from tests.jit.memory import Memory

BASE = 0x100000
SYMBOL_TABLE = BASE
"""Address of the words that SYMBOLS name, eight bytes each, in their order."""
HEAP = BASE + 0x8000
CODE = HEAP + 0x400
"""Address of the code of the only compiled method."""
FRAME = 64
ENTRY = b"\x89\x84\x24\x00\xc0\xfe\xff\x55\x48\x83\xec\x30"
"""The stack bang, push %rbp, sub $48,%rsp."""
LEAVE = b"\x48\x83\xc4\x30\x5d\x49\x3b\xa7\x40\x03\x00\x00\x0f\x87\x01\x00\x00\x00\xc3"
"""add $48,%rsp; pop %rbp; the poll; ret."""

_OFFSETS = {
    ("CodeHeap", "_memory"): 8,
    ("CodeHeap", "_segmap"): 120,
    ("CodeHeap", "_log2_segment_size"): 256,
    ("VirtualSpace", "_high_boundary"): 8,
    ("VirtualSpace", "_low"): 16,
    ("VirtualSpace", "_high"): 24,
    ("GrowableArrayBase", "_len"): 0,
    ("GrowableArray<int>", "_data"): 8,
    ("HeapBlock::Header", "_used"): 8,
    ("CodeBlob", "_size"): 12,
    ("CodeBlob", "_frame_complete_offset"): 20,
    ("CodeBlob", "_frame_size"): 28,
    ("CodeBlob", "_code_begin"): 32,
    ("CodeBlob", "_code_end"): 40,
    ("CodeBlob", "_name"): 96,
    ("CompiledMethod", "_method"): 112,
    ("CompiledMethod", "_scopes_data_begin"): 120,
    ("nmethod", "_osr_entry_point"): 232,
    ("nmethod", "_metadata_offset"): 260,
    ("nmethod", "_scopes_pcs_offset"): 268,
    ("nmethod", "_dependencies_offset"): 272,
    ("nmethod", "_compile_id"): 304,
    ("PcDesc", "_pc_offset"): 0,
    ("PcDesc", "_scope_decode_offset"): 4,
    ("Method", "_constMethod"): 8,
    ("ConstMethod", "_constants"): 8,
    ("ConstMethod", "_constMethod_size"): 24,
    ("ConstMethod", "_flags"): 28,
    ("ConstMethod", "_code_size"): 32,
    ("ConstMethod", "_name_index"): 34,
    ("ConstantPool", "_pool_holder"): 24,
    ("ConstantPool", "_source_file_name_index"): 54,
    ("Klass", "_name"): 24,
    ("Symbol", "_length"): 4,
    ("Symbol", "_body"): 6,
}
_SIZES = {
    "HeapBlock": 16,
    "CodeBlob": 104,
    "nmethod": 352,
    "PcDesc": 16,
    "ConstMethod": 48,
    "ConstantPool": 72,
    "InterpreterCodelet": 16,
}


class _Image:
    """Bytes that grow from an address on."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.end = BASE + 0x200

    def put(self, avma: int, content: bytes) -> int:
        self.data[avma - BASE : avma - BASE + len(content)] = content
        return avma

    def add(self, content: bytes) -> int:
        avma = self.end
        self.end += len(content) + -len(content) % 8
        return self.put(avma, content)

    def name(self, text: str) -> int:
        return self.add(text.encode() + b"\0")

    def fields(self, size: int, *fields: tuple[tuple[str, str], str, int]) -> bytes:
        made = bytearray(size)
        for name, layout, value in fields:
            struct.pack_into(f"<{layout}", made, _OFFSETS[name], value)
        return bytes(made)

    def array(self, names: tuple[bytes, ...], layout: str, rows: list[tuple[int, ...]]) -> None:
        """Add an array of the virtual machine's description, and what its symbols say."""
        size = struct.calcsize(layout)
        avma = self.add(b"".join(struct.pack(layout, *row) for row in rows) + bytes(size))
        words = [avma, size, *range(0, 8 * (len(names) - 2), 8)]
        for name, word in zip(names, words, strict=True):
            self.put(SYMBOL_TABLE + 8 * SYMBOLS.index(name), struct.pack("<Q", word))


def image(heap_array: int = 1, is_jdk_8: bool = False) -> bytes:
    """Return the memory from BASE on.

    Args:
        heap_array: Stated number of code heaps.
        is_jdk_8: State the only code heap and the version as JDK 8 does, whose virtual machine has version 25.
    """
    made = _Image(0xA000)
    heap = made.add(made.fields(400, (("CodeHeap", "_log2_segment_size"), "i", 7)))
    for space, low, high in ((8, HEAP, HEAP + 0x1000), (120, HEAP + 0x1800, HEAP + 0x1900)):
        made.put(heap + space + 16, struct.pack("<2Q", low, high))
    heaps = made.add(struct.pack("<2iQ", heap_array, heap_array, made.add(struct.pack("<Q", heap))))
    statics = [(("CodeCache", "_heaps"), made.add(struct.pack("<Q", heaps)))]
    if is_jdk_8:
        heap_field, version = ("CodeCache", "_heap"), ("Abstract_VM_Version", "_vm_major_version")
        statics = [(heap_field, made.add(struct.pack("<Q", heap))), (version, made.add(bytes((25, 0, 0, 0))))]
    made.put(HEAP + 0x1800, bytes((0xFF, 0xFF, 0xFF, 0xFF, 0, *range(1, 16))).ljust(0x100, b"\xff"))
    made.put(HEAP + 0x200, struct.pack("<QB", 16, 1))

    words = [
        made.add(struct.pack("<IH", 1, len(text)) + text)
        for text in (b"p/Own$$Lambda$7+0x0000000800c03000", b"run", b"Own.java")
    ]
    klass = made.add(made.fields(200, (("Klass", "_name"), "Q", words[0])))
    pool = made.add(
        made.fields(
            72, (("ConstantPool", "_pool_holder"), "Q", klass), (("ConstantPool", "_source_file_name_index"), "H", 2)
        )
        + struct.pack("<3Q", *words)
    )
    lines = b"\x0c\xff\x14\x28\x00"  # index 1: line 4; then index 11: line 24
    const = made.add(
        made.fields(
            48,
            (("ConstMethod", "_constants"), "Q", pool),
            (("ConstMethod", "_constMethod_size"), "i", 9),
            (("ConstMethod", "_flags"), "H", 1),
            (("ConstMethod", "_code_size"), "H", 12),
            (("ConstMethod", "_name_index"), "H", 1),
        )
        + bytes(12)
        + lines.ljust(12, b"\0")
    )
    method = made.add(made.fields(88, (("Method", "_constMethod"), "Q", const)))

    code = ENTRY + b"\x90" * 4 + LEAVE
    blob, metadata = HEAP + 0x210, 0x380
    scopes = bytes((0, 0, 1, 2, 1, 1, 12))  # at 1: the outer method; at 4: one that is inlined into it
    made.put(
        blob,
        made.fields(
            352,
            (("CodeBlob", "_size"), "i", 0x600),
            (("CodeBlob", "_frame_complete_offset"), "i", len(ENTRY)),
            (("CodeBlob", "_frame_size"), "i", FRAME // 8),
            (("CodeBlob", "_code_begin"), "Q", CODE),
            (("CodeBlob", "_code_end"), "Q", CODE + len(code)),
            (("CodeBlob", "_name"), "Q", made.name("nmethod")),
            (("CompiledMethod", "_method"), "Q", method),
            (("CompiledMethod", "_scopes_data_begin"), "Q", blob + metadata + 8),
            (("nmethod", "_metadata_offset"), "i", metadata),
            (("nmethod", "_scopes_pcs_offset"), "i", metadata + 16),
            (("nmethod", "_dependencies_offset"), "i", metadata + 48),
        ),
    )
    made.put(CODE, code)
    made.put(
        blob + metadata,
        struct.pack("<Q", method) + scopes.ljust(8, b"\0") + struct.pack("<8i", 14, 4, 0, 0, 16, 1, 0, 0),
    )

    rows: list[tuple[int, ...]] = [
        (made.name(kind), made.name(name), 0, at, 0) for (kind, name), at in _OFFSETS.items()
    ]
    rows += [(made.name(kind), made.name(name), 1, 0, at) for (kind, name), at in statics]
    made.array(FIELDS, "<5Q", rows)
    made.array(TYPES, "<2Q", [(made.name(name), size) for name, size in _SIZES.items()])
    made.array(INTS, "<2Q", [(made.name("ConstMethod::_has_linenumber_table"), 1)])
    assert made.end < HEAP
    return bytes(made.data)


def open_vm(data: bytes) -> JavaVm:
    """Open the virtual machine in an image.

    Raises:
        FormatError: It cannot be read.
    """
    memory = Memory()
    memory.put(BASE, data)
    space = AddressSpace(1, 1, 1, (), memory.read, "/")
    return JavaVm(space, {name: SYMBOL_TABLE + 8 * at for at, name in enumerate(SYMBOLS)}, X86_64)


def exhaust(data: bytes) -> None:
    """Read everything in an image that may be broken in any way."""
    with suppress(FormatError):
        vm = open_vm(data)
        vm.interpreter = None
        for pc in range(CODE - 0x40, CODE + 0x100, 24):
            code = vm.read_code(pc)
            if code is not None:
                vm.fill(code)
                for exact in (False, True):
                    vm.rows(code, pc, exact)
                for at in range(0, 64, 3):
                    for method, _ in code.scopes.find(at) if code.scopes is not None else ():
                        vm.methods.find(method)
                assert vm.is_current(code.blob) in (True, False)
        vm.find_codelet(CODE)
