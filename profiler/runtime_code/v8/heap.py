"""Bounded reads of objects on V8's heap, by the layout that V8 exports for debuggers.

V8 exports `v8dbg_*` (gen-postmortem-metadata.py): types, offsets of fields, frame slots. These constants are not
complete. The missing ones are in a table by version; versions that are not in the table are refused.

The garbage collector moves objects, so each read checks the object's type.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import ReadMemory

SYMBOL_PREFIXES = (b"Builtins_", b"v8dbg_", b"_ZN2v88internal7Version6", b"v8_Default_embedded_blob_code_")
"""Prefixes of the names of symbols from which the layout of V8's heap and the functions that are built into V8 are
read.
"""
_VERSION = b"_ZN2v88internal7Version6%b_E"
MARK = b"v8dbg_off_fp_context"
"""Name of a symbol that each V8 with exported constants for debuggers has. It shows that a process contains V8."""


@dataclass(frozen=True, slots=True)
class V8CodeLayout:
    """The offsets by which V8 describes a piece of its generated code.

    Attributes:
        code: Offset in an InstructionStream (the object with the instructions) of the pointer to its Code. 0 if both
            are one object.
        header: Offset of the instructions in their InstructionStream.
        deoptimization: Offset in Code of the deoptimisation data, or of the bytecode of baseline code.
        positions: Offset in Code of the table of source positions.
        bytecode_positions: Offset in a BytecodeArray of the table of source positions.
        flags: Offset in Code of the flags, whose lowest four bits are the kind.
        size: Offset in Code of the size of the instructions in bytes (32 bits).
        kinds: Kinds of baseline, Maglev and Turbofan code.
    """

    code: int
    header: int
    deoptimization: int
    positions: int
    bytecode_positions: int
    flags: int
    size: int
    kinds: tuple[int, int, int]


_CODE = {
    (10, 2): V8CodeLayout(0, 128, 16, 24, bytecode_positions=32, flags=48, size=40, kinds=(11, 12, 13)),
    (11, 3): V8CodeLayout(8, 16, 16, 24, bytecode_positions=32, flags=48, size=56, kinds=(11, 12, 13)),
    (12, 4): V8CodeLayout(8, 32, 8, 16, bytecode_positions=24, flags=48, size=52, kinds=(10, 11, 12)),
    (13, 6): V8CodeLayout(8, 32, 8, 16, bytecode_positions=24, flags=52, size=56, kinds=(10, 11, 12)),
}
NEEDED: dict[str, tuple[str, ...]] = {
    "instance_type": ("class_Map__instance_type__uint16_t",),
    "shared": ("class_JSFunction__shared__SharedFunctionInfo",),
    "name": (
        "class_SharedFunctionInfo__name_or_scope_info__Object",
        "class_SharedFunctionInfo__name_or_scope_info__Tagged_Object_",
        "class_SharedFunctionInfo__name_or_scope_info__Tagged_NameOrScopeInfoT_",
    ),
    "script": (
        "class_SharedFunctionInfo__script_or_debug_info__HeapObject",
        "class_SharedFunctionInfo__script__Tagged_HeapObject_",
    ),
    "script_name": ("class_Script__name__Object",),
    "script_source": ("class_Script__source__Object",),
    "line_ends": ("class_Script__line_ends__Object",),
    "bytecode": ("class_BytecodeArray__data__uintptr_t",),
    "string_length": ("class_String__length__int32_t",),
    "cons_first": ("class_ConsString__first__String",),
    "cons_second": ("class_ConsString__second__String",),
    "sliced_parent": ("class_SlicedString__parent__String",),
    "sliced_offset": ("class_SlicedString__offset__SMI",),
    "thin_actual": ("class_ThinString__actual__String",),
    "external_resource": ("class_ExternalString__resource__Object",),
    "characters": ("class_SeqOneByteString__chars__char",),
    "array_length": ("class_FixedArrayBase__length__SMI",),
    "array_data": ("class_FixedArray__data__uintptr_t",),
    "first_nonstring": ("FirstNonstringType",),
    "scope_locals": ("scopeinfo_idx_ncontextlocals",),
    "scope_first": ("scopeinfo_idx_first_vars",),
    "fp_context": ("off_fp_context",),
    "fp_function": ("off_fp_function",),
    "fp_bytecode": ("off_fp_bytecode_array",),
    "fp_offset": ("off_fp_bytecode_offset",),
    "type_function": ("type_JSFunction__JS_FUNCTION_TYPE",),
    "type_shared": ("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE",),
    "type_scope": ("type_ScopeInfo__SCOPE_INFO_TYPE",),
    "type_script": ("type_Script__SCRIPT_TYPE",),
    "type_uncompiled_first": ("type_UncompiledDataWithPreparseData__UNCOMPILED_DATA_WITH_PREPARSE_DATA_TYPE",),
    "type_uncompiled_last": ("type_UncompiledDataWithoutPreparseData__UNCOMPILED_DATA_WITHOUT_PREPARSE_DATA_TYPE",),
    "type_bytecode": ("type_BytecodeArray__BYTECODE_ARRAY_TYPE",),
    "type_interpreter_data": ("type_InterpreterData__INTERPRETER_DATA_TYPE",),
    "type_code": ("type_Code__CODE_TYPE",),
    "type_stream": ("type_InstructionStream__INSTRUCTION_STREAM_TYPE", "type_Code__CODE_TYPE"),
    "type_byte_array": ("type_ByteArray__BYTE_ARRAY_TYPE",),
    "type_fixed_array": ("type_FixedArray__FIXED_ARRAY_TYPE",),
    "type_map": ("type_Map__MAP_TYPE",),
}
"""Constants that V8 must export for debuggers, by the keys of V8Layout.at. Each has the symbol names of different
versions, without the prefix v8dbg_.
"""
MISSING_VALUES = {
    "function_data": ("class_SharedFunctionInfo__function_data__Object", 8),
    "inlined_count": ("DeoptimizationDataInlinedFunctionCountIndex", 1),
    "literals": ("DeoptimizationDataLiteralArrayIndex", 2),
    "own_function": ("DeoptimizationDataSharedFunctionInfoIndex", 6),
    "own_wrapper": ("DeoptimizationDataWrappedSharedFunctionInfoIndex", 0),
    "inlining_positions": ("DeoptimizationDataInliningPositionsIndex", 7),
    "type_trusted_bytes": ("type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE", -1),
    "type_weak_array": ("type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE", -1),
    "type_weak_list": ("type_WeakArrayList__WEAK_ARRAY_LIST_TYPE", -1),
    "type_wrapper": ("type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE", -1),
    "uncompiled_name": ("class_UncompiledData__inferred_name__String", 8),
    "wasm_frame": ("frametype_WasmFrame", 4),
    "uncompiled_start": ("class_UncompiledData__start_position__int32_t", 16),
}
"""Constants that some versions of V8 do not export, by the keys of V8Layout.at: (symbol name without the prefix v8dbg_,
value where it is not exported).
"""


@dataclass(frozen=True, slots=True)
class V8Layout:
    """The layout of one V8's data.

    Attributes:
        version: Major and minor version of V8.
        at: Offsets in bytes, instance types and indexes, by the keys of NEEDED and MISSING_VALUES.
        code: Layout of the objects that describe generated code.
    """

    version: tuple[int, int]
    at: Mapping[str, int]
    code: V8CodeLayout


def read_layout(read: ReadMemory, symbols: Mapping[bytes, int]) -> V8Layout:
    """Read the layout of V8's data from the constants in the process.

    Args:
        read: Reads the memory of the process.
        symbols: Addresses in the process of the symbols that begin with SYMBOL_PREFIXES.

    Raises:
        FormatError: The version is not known, or a constant is missing.
    """

    def value(name: bytes) -> int | None:
        data = read(symbols[name], 4) if name in symbols else b""
        return int.from_bytes(data, "little", signed=True) if len(data) == 4 else None

    major, minor = (value(_VERSION % part) for part in (b"major", b"minor"))
    if major is None or minor is None:
        raise FormatError("V8", 0, "its version is not readable")
    version = major, minor
    if version not in _CODE:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(_CODE))
        raise FormatError("V8", 0, f"version {major}.{minor} is not known (known are {known})")
    found: dict[str, int] = {}
    for name, constants in NEEDED.items():
        values = [stated for each in constants if (stated := value(b"v8dbg_" + each.encode())) is not None]
        if not values:
            raise FormatError("V8", 0, f"v8dbg_{constants[0]} is not exported")
        found[name] = values[0]
    for name, (constant, default) in MISSING_VALUES.items():
        exported = value(b"v8dbg_" + constant.encode())
        found[name] = default if exported is None else exported
    if found["instance_type"] < 0 or not -1024 <= found["fp_function"] < 0:
        raise FormatError("V8", 0, "constants that are not plausible")
    return V8Layout(version, found, _CODE[version])


MAX_PARTS = 64
"""Maximum number of heap objects of which a V8 string may consist."""
MAX_MAPS = 1 << 12
_LIMIT = 1 << 47
_WORD = 8

_SEQUENTIAL, _CONS, _EXTERNAL, _SLICED, _THIN = 0, 1, 2, 3, 5
"""Representations of V8 strings: values of the lowest three bits of a string's instance type."""
_ONE_BYTE = 8
"""Bit of a V8 string's instance type: each character has one byte, else two."""


def smi(word: int) -> int | None:
    """Return the small integer (Smi) that a word of V8's heap holds, or None."""
    if word & 0xFFFFFFFF:
        return None
    value = word >> 32
    return value - (1 << 32) if value >> 31 else value


def flag_word(word: int) -> int:
    """Return the flags in a field of a V8 object. V8 13.6 keeps them as a plain number, earlier versions as a small
    integer.
    """
    return word >> 32 if word >> 32 else word


class V8Heap:
    """A reader of one V8's heap. Addresses are tagged pointers unless they are called avma."""

    def __init__(self, read: ReadMemory, layout: V8Layout) -> None:
        self._read = read
        self.layout = layout
        self._types: dict[int, int] = {}

    def renew(self, read: ReadMemory) -> None:
        """Set the function that reads V8's memory: that of the process's current address space."""
        self._read = read

    def forget_types(self) -> None:
        """Clear the cache of types of V8's objects, because the garbage collector may have reused their memory."""
        self._types.clear()

    def read(self, avma: int, size: int) -> bytes:
        """Return `size` bytes of V8's memory.

        Raises:
            FormatError: The bytes are not readable.
        """
        data = self._read(avma, size) if 0 < avma < _LIMIT - size else b""
        if len(data) != size:
            raise FormatError("V8", avma, f"{size} bytes at {avma:#x} are not readable")
        return data

    def read_available(self, avma: int, size: int) -> bytes:
        """Return the readable bytes from an address of V8's memory on, `size` at most."""
        return self._read(avma, size) if 0 < avma < _LIMIT - size else b""

    def word(self, avma: int) -> int:
        """Return the 64-bit word at an address of V8's memory.

        Raises:
            FormatError: The word is not readable.
        """
        return int.from_bytes(self.read(avma, _WORD), "little")

    def number(self, avma: int) -> int:
        """Return the unsigned 32-bit number at an address of V8's memory.

        Raises:
            FormatError: The number is not readable.
        """
        return int.from_bytes(self.read(avma, 4), "little")

    def field(self, pointer: int, offset: int) -> int:
        """Return the word at an offset of a V8 object, without the mark of a weak reference.

        Raises:
            FormatError: The field is not readable.
        """
        word = self.word((pointer & ~3) + offset)
        return word & ~2 if word & 1 else word

    def resolve(self, pointer: int) -> int:
        """Return the current address of a V8 object. If the garbage collector has moved the object, the new address is
        in place of its map.

        Raises:
            FormatError: There is no object.
        """
        if not pointer & 1:
            raise FormatError("V8", pointer, "no pointer to an object")
        pointer = pointer & ~3 | 1
        first = self.word(pointer - 1)
        if first & 3:
            return pointer
        return first | 1

    def type_of(self, pointer: int) -> int:
        """Return the instance type of a V8 object.

        Raises:
            FormatError: There is no object.
        """
        if not pointer & 1:
            raise FormatError("V8", pointer, "no pointer to an object")
        kind = self.word(pointer & ~3)
        found = self._types.get(kind)
        if found is None:
            at = self.layout.at
            if kind & 3 != 1:
                raise FormatError("V8", pointer, "an object without a map")
            if self.type_word(self.word(kind - 1)) != at["type_map"]:
                raise FormatError("V8", pointer, "an object whose map is none")
            found = self.type_word(kind)
            if len(self._types) >= MAX_MAPS:
                self._types.clear()
            self._types[kind] = found
        return found

    def type_word(self, kind: int) -> int:
        """Return the instance type that a V8 map states for its objects.

        Raises:
            FormatError: The map is not readable.
        """
        return int.from_bytes(self.read((kind & ~3) + self.layout.at["instance_type"], 2), "little")

    def bytecode_of(self, pointer: int) -> int:
        """Return the BytecodeArray to which the field function_data of a function leads, directly or through code, or
        0.

        Raises:
            FormatError: An object is not readable.
        """
        layout = self.layout
        for _ in range(3):
            if not pointer & 1:
                return 0
            kind = self.type_of(pointer)
            if kind == layout.at["type_bytecode"]:
                return pointer
            if kind == layout.at["type_interpreter_data"]:
                pointer = self.field(pointer, 8)
            elif kind == layout.at["type_code"]:
                pointer = self.field(pointer, layout.code.deoptimization)
            else:
                return 0
        return 0

    def has_type(self, pointer: int, name: str) -> bool:
        """Return True if there is a V8 object with this instance type at an address; `name` is the type's key in
        V8Layout.at.
        """
        try:
            return self.type_of(pointer) == self.layout.at[name]
        except FormatError:
            return False

    def array(self, pointer: int, most: int) -> bytes:
        """Return the words of a V8 array, or the first `most` of them.

        Raises:
            FormatError: The array is not readable or not plausible.
        """
        at = self.layout.at
        length = smi(self.field(pointer, at["array_length"]))
        if length is None or length < 0:
            raise FormatError("V8", pointer, "an array without a length")
        return self.read((pointer & ~3) + at["array_data"], min(length, most) * _WORD)

    def byte_array(self, pointer: int, most: int) -> bytes:
        """Return the content of a V8 byte array.

        Raises:
            FormatError: The array is not readable, or longer than `most`.
        """
        at = self.layout.at
        length = smi(self.field(pointer, at["array_length"]))
        if length is None or not 0 <= length <= most:
            raise FormatError("V8", pointer, "an array of bytes without a plausible length")
        return self.read((pointer & ~3) + at["array_data"], length)

    def is_string(self, pointer: int) -> bool:
        try:
            return self.type_of(pointer) < self.layout.at["first_nonstring"]
        except FormatError:
            return False

    def text(self, pointer: int, most: int) -> str:
        """Return the first `most` characters of a V8 string.

        Raises:
            FormatError: There is no string, or it has more than MAX_PARTS parts.
        """
        at = self.layout.at
        parts: list[str] = []
        todo = [(pointer, 0, most)]
        for _ in range(MAX_PARTS):
            if not todo or most <= 0:
                return "".join(parts)
            pointer, skipped, wanted = todo.pop()
            kind = self.type_of(pointer)
            if kind >= at["first_nonstring"]:
                raise FormatError("V8", pointer, "an object that is no string")
            length = self.number((pointer & ~3) + at["string_length"])
            shape = kind & 7
            if shape == _CONS:
                first = self.field(pointer, at["cons_first"])
                size = self.number((first & ~3) + at["string_length"])
                todo.append((self.field(pointer, at["cons_second"]), max(skipped - size, 0), wanted))
                if skipped < size:
                    todo.append((first, skipped, wanted))
            elif shape == _SLICED:
                offset = smi(self.field(pointer, at["sliced_offset"])) or 0
                todo.append((self.field(pointer, at["sliced_parent"]), skipped + offset, min(wanted, length - skipped)))
            elif shape == _THIN:
                todo.append((self.field(pointer, at["thin_actual"]), skipped, wanted))
            elif shape in (_SEQUENTIAL, _EXTERNAL):
                start = (pointer & ~3) + at["characters"]
                if shape == _EXTERNAL:
                    start = self.word((pointer & ~3) + at["external_resource"] + _WORD)
                width = 1 if kind & _ONE_BYTE else 2
                count = max(min(length - skipped, wanted, most), 0)
                data = self.read(start + skipped * width, count * width)
                parts.append(data.decode("latin-1" if width == 1 else "utf-16-le", "replace"))
                most -= count
            else:
                raise FormatError("V8", pointer, "a string of an unknown form")
        if todo:
            raise FormatError("V8", pointer, "a string of too many parts")
        return "".join(parts)
