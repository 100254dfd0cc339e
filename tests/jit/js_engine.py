"""A made V8: memory with its constants, and an optimised, an inlined and a baseline function as V8 11.3 has them."""

from __future__ import annotations

import struct
from contextlib import suppress

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.runtime_code.v8.function_search_by_bytecode import find_by_bytecode, find_script_list, read_script_list
from pyprof.runtime_code.v8.generated_code_reader import V8Engine
from pyprof.runtime_code.v8.heap import NEEDED
from pyprof.runtime_code.v8.unwind_rules import V8FrameRules
from tests.jit.memory import Memory

BASE = 0x100000
CODE = BASE + 0x4030
"""Address of the optimised function's InstructionStream."""
BASELINE = CODE + 0x100
OPTIMIZED = b"\x48\x8b\x59\xe8\x55\x48\x89\xe5\x56\x57\x50" + b"\x90" * 40 + b"\x48\x8b\xe5\x5d\xc2\x10\x00"
"""Code of the optimised function: a check, push %rbp; mov %rsp,%rbp; ... mov %rbp,%rsp; pop %rbp; ret $16."""
SOURCE = "function inner() {}\nfunction outer() {\n  inner();\n}\n"

_TYPES = {
    name: 200 + number for number, name in enumerate(sorted(name for name in NEEDED if name.startswith("type_")))
} | {"type_function": 2066}
_VALUES = {
    "instance_type": 12,
    "shared": 24,
    "name": 16,
    "script": 32,
    "script_name": 16,
    "script_source": 8,
    "line_ends": 56,
    "bytecode": 54,
    "string_length": 12,
    "cons_first": 16,
    "cons_second": 24,
    "sliced_parent": 16,
    "sliced_offset": 24,
    "thin_actual": 16,
    "external_resource": 16,
    "characters": 16,
    "array_length": 8,
    "array_data": 16,
    "first_nonstring": 128,
    "scope_locals": 2,
    "scope_first": 3,
    "fp_context": -8,
    "fp_function": -16,
    "fp_bytecode": -32,
    "fp_offset": -40,
    **_TYPES,
}
_LISTS = {"type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE": 190, "type_WeakArrayList__WEAK_ARRAY_LIST_TYPE": 191}
ONE_BYTE_STRING, CONS_STRING = 8, 9


def _number(value: int) -> int:
    return (value & 0xFFFFFFFF) << 32


class MadeHeap:
    """Bytes that grow from an address on, with objects of V8."""

    def __init__(self) -> None:
        self.data = bytearray(0x8000)
        self.end = BASE + 0x400
        self.symbols: dict[bytes, int] = {}
        self._maps: dict[int, int] = {}
        constants = {f"v8dbg_{NEEDED[name][0]}": value for name, value in _VALUES.items()}
        constants |= {f"v8dbg_{name}": value for name, value in _LISTS.items()}
        constants |= {f"_ZN2v88internal7Version6{part}_E": value for part, value in (("major", 11), ("minor", 3))}
        for number, (name, value) in enumerate(constants.items()):
            self.symbols[name.encode()] = self.put(BASE + 4 * number, struct.pack("<i", value))
        self._map_map = self.end + 1
        self.object_words(self._map_map, _TYPES["type_map"] << 32)
        self.function = self.optimized = self.inner = self.outer = self.bytecode = 0
        self._make()

    def put(self, avma: int, content: bytes) -> int:
        self.data[avma - BASE : avma - BASE + len(content)] = content
        return avma

    def add(self, content: bytes) -> int:
        """Add bytes and return their address as a tagged pointer."""
        avma = self.end
        self.end += len(content) + -len(content) % 8
        return self.put(avma, content) + 1

    def object_words(self, *words: int) -> int:
        return self.add(struct.pack(f"<{len(words)}Q", *words))

    def map_of(self, kind: int) -> int:
        if kind not in self._maps:
            self._maps[kind] = self.object_words(self._map_map, kind << 32, 0)
        return self._maps[kind]

    def object(self, kind: str, *words: int) -> int:
        first = self.map_of(_TYPES[kind])
        return self.object_words(first, *words)

    def string(self, text: str) -> int:
        first = self.map_of(ONE_BYTE_STRING)
        return self.add(struct.pack("<QII", first, 0, len(text)) + text.encode("latin-1"))

    def bytes_array(self, content: bytes) -> int:
        first = self.map_of(_TYPES["type_byte_array"])
        return self.add(struct.pack("<QQ", first, _number(len(content))) + content)

    def array(self, *words: int) -> int:
        return self.object("type_fixed_array", _number(len(words)), *words)

    def shared(self, name: str, start: int, script: int, data: int) -> int:
        scope = self.object(
            "type_scope", _number(2 | 3 << 12), 0, _number(0), self.string(name), 0, _number(start), _number(start + 9)
        )
        return self.object("type_shared", data, scope, 0, script)

    def code(self, stream: int, kind: int, data: int, positions: int, size: int) -> int:
        words = struct.pack("<iiIIII", kind, -1, size, 0, 0, 0)
        first = self.map_of(_TYPES["type_code"])
        return self.add(struct.pack("<6Q", first, 0, data, positions, stream + 1, stream + 16) + words)

    def _make(self) -> None:
        path = self.object_words(
            self.map_of(CONS_STRING), len("file:///srv/a.js") << 32, self.string("file://"), self.string("/srv/a.js")
        )
        script = self.object("type_script", self.string(SOURCE), path, 0, 0, 0, 0, 0)
        nothing = self.bytes_array(b"")
        self.bytecode = self.object("type_bytecode", _number(4), nothing, nothing, nothing, 0, 0)
        self.inner = self.shared("inner", SOURCE.index("inner"), script, self.bytecode)
        self.outer = self.shared("outer", SOURCE.index("outer"), script, 0)
        call = SOURCE.index("inner();")
        positions = bytes((2 * 12, 2 * (2 * (call + 1)) & 0x7F | 0x80, 2 * (2 * (call + 1)) >> 7))
        inside = (1 << 31 | 2 * (SOURCE.index("{}") + 1)) - 2 * (call + 1)
        positions += bytes((2 * 10,)) + _variable(2 * inside)
        inlining = self.bytes_array(struct.pack("<QQ", 2 * (call + 1), 0))
        data = self.array(0, _number(1), self.array(self.inner), 0, 0, 0, self.outer, inlining)
        self.optimized = self.code(CODE, 13, data, self.bytes_array(positions), len(OPTIMIZED))
        self.put(CODE, struct.pack("<2Q", self.map_of(_TYPES["type_stream"]), self.optimized) + OPTIMIZED)
        baseline = self.code(BASELINE, 11, self.bytecode, nothing, 32)
        self.put(BASELINE, struct.pack("<2Q", self.map_of(_TYPES["type_stream"]), baseline) + b"\xe8" + bytes(31))
        self.function = self.object_words(self.map_of(2066), 0, 0, self.inner)
        functions = self.object_words(self.map_of(190), _number(3), self.inner | 2, 3, self.outer | 2)
        self.put(script - 1 + 56, struct.pack("<Q", functions))
        scripts = self.object_words(self.map_of(191), _number(4), _number(2), 3, script | 2)
        self.roots = self.object_words(_number(7), functions, scripts) - 1
        assert self.end < CODE

    def open(self, data: bytes | None = None) -> V8Engine:
        """Open the engine in the image, or in another one that has its constants in the same places.

        Raises:
            FormatError: It cannot be read.
        """
        memory = Memory()
        memory.put(BASE, bytes(self.data) if data is None else data)
        return V8Engine(AddressSpace(1, 1, 1, (), memory.read, "/"), self.symbols)


def _variable(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def image() -> bytes:
    """Return the memory from BASE on."""
    return bytes(MadeHeap().data)


def exhaust(data: bytes) -> None:
    """Read everything in an image that may be broken in any way."""
    made, rules = MadeHeap(), V8FrameRules(X86_64)
    with suppress(FormatError):
        engine = made.open(data)
        for pc in range(CODE, BASELINE + 0x40, 12):
            code = engine.read_code(pc, BASE)
            if code is not None:
                engine.find_places(code, pc)
                engine.make_rows(code, rules)
                assert engine.is_current(code) in (True, False)
        for bytecode, code_at in ((made.bytecode, 0), (0, made.optimized)):
            shared = engine.find_shared(made.function, bytecode, code_at)
            if shared:
                engine.functions.find(shared)
            engine.bytecode_positions(bytecode)
            slot = find_script_list(engine.heap, made.roots)
            find_by_bytecode(engine.heap, read_script_list(engine.heap, slot), {bytecode})
