"""The layout of V8's data structures: the constants that V8 exports for debuggers, and what differs between versions.

V8 exports `v8dbg_*` (gen-postmortem-metadata.py): types, offsets of fields, frame slots. The constants are not
complete. What is missing is in a table by version; other versions are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.errors import FormatError
from pyprof.model.modules import ReadMemory
from pyprof.records import dataclass

SYMBOL_PREFIXES = (b"Builtins_", b"v8dbg_", b"_ZN2v88internal7Version6", b"v8_Default_embedded_blob_code_")
"""First letters of the symbols that read_layout() and the engine need."""
_VERSION = b"_ZN2v88internal7Version6%b_E"
MARK = b"v8dbg_off_fp_context"
"""Symbol of each V8 that exports constants for debuggers."""


@dataclass(frozen=True, slots=True)
class V8CodeLayout:
    """The place of the description of a piece of V8's generated code.

    Attributes:
        code: Offset in the object around the instructions (InstructionStream) of its Code. 0: they are one object.
        header: Offset of the instructions in the object around them.
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
"""Constants that must be exported, by the names under which they are used here. Versions have different names."""
MISSING_VALUES = {
    "function_data": ("class_SharedFunctionInfo__function_data__Object", 8),
    "inlined_count": ("DeoptimizationDataInlinedFunctionCountIndex", 1),
    "literals": ("DeoptimizationDataLiteralArrayIndex", 2),
    "own_function": ("DeoptimizationDataSharedFunctionInfoIndex", 6),
    "own_wrapper": ("DeoptimizationDataWrappedSharedFunctionInfoIndex", 0),
    "inlining_positions": ("DeoptimizationDataInliningPositionsIndex", 7),
    "type_trusted_bytes": ("type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE", -1),
    "type_wrapper": ("type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE", -1),
    "uncompiled_name": ("class_UncompiledData__inferred_name__String", 8),
    "uncompiled_start": ("class_UncompiledData__start_position__int32_t", 16),
}
"""Constants with the value that they have where they are not exported."""


@dataclass(frozen=True, slots=True)
class V8Layout:
    """The layout of one V8's data.

    Attributes:
        version: Major and minor version of V8.
        at: Offsets, types and indexes by name.
        code: V8Layout of generated code.
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
