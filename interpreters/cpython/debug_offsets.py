"""The table of structure offsets (_Py_DebugOffsets) at the start of _PyRuntime, in CPython 3.13 and later.

Versions insert fields in the middle, so each minor version has its full list of fields here. Source:
Include/internal/pycore_debug_offsets.h (3.14, 3.15), pycore_runtime.h (3.13). Offsets that the table lacks come from
CPython's headers (offsetof). runtime_validation.py checks all of them against the process.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pyprof.errors import FormatError
from pyprof.interpreters.cpython.layout import (
    NONE,
    OBJECTS_3_12,
    AwaitLayout,
    ChainKind,
    CodeLayout,
    FrameLayout,
    InterpreterLayout,
    Layout,
    LineTableFormat,
    ObjectLayout,
    RuntimeLayout,
    ThreadLayout,
)
from pyprof.lazy_dataclasses import replace

COOKIE = b"xdebugpy"
HEAD = 24
"""Size in bytes of the head of _Py_DebugOffsets: cookie, version and free_threaded."""

_3_13 = """
runtime_state size finalizing interpreters_head
interpreter_state size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_runtime_state
 gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
thread_state size prev next interp current_frame thread_id native_thread_id datastack_chunk status
interpreter_frame size previous executable instr_ptr localsplus owner
code_object size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
 co_code_adaptive
pyobject size ob_type
type_object size tp_name tp_repr tp_flags
tuple_object size ob_item ob_size
list_object size ob_item ob_size
dict_object size ma_keys ma_values
float_object size ob_fval
long_object size lv_tag ob_digit
bytes_object size ob_size ob_sval
unicode_object size state length asciiobject_size
gc size collecting
"""

_3_14 = """
runtime_state size finalizing interpreters_head
interpreter_state size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil gil_runtime_state
 gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder code_object_generation tlbc_generation
thread_state size prev next interp current_frame thread_id native_thread_id datastack_chunk status
interpreter_frame size previous executable instr_ptr localsplus owner stackpointer tlbc_index
code_object size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
 co_code_adaptive co_tlbc
pyobject size ob_type
type_object size tp_name tp_repr tp_flags
tuple_object size ob_item ob_size
list_object size ob_item ob_size
set_object size used table mask
dict_object size ma_keys ma_values
float_object size ob_fval
long_object size lv_tag ob_digit
bytes_object size ob_size ob_sval
unicode_object size state length asciiobject_size
gc size collecting
gen_object size gi_name gi_iframe gi_frame_state
llist_node next prev
debugger_support eval_breaker remote_debugger_support remote_debugging_enabled debugger_pending_call
 debugger_script_path debugger_script_path_size
"""

_3_15 = """
runtime_state size finalizing interpreters_head
interpreter_state size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil gil_runtime_state
 gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder code_object_generation tlbc_generation
thread_state size prev next interp current_frame base_frame last_profiled_frame last_profiled_frame_seq thread_id
 native_thread_id datastack_chunk status holds_gil gil_requested current_exception exc_state
err_stackitem exc_value
interpreter_frame size previous executable instr_ptr localsplus owner stackpointer tlbc_index
code_object size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
 co_code_adaptive co_tlbc
pyobject size ob_type
type_object size tp_name tp_repr tp_flags tp_basicsize tp_dictoffset
heap_type_object size ht_cached_keys
tuple_object size ob_item ob_size
list_object size ob_item ob_size
set_object size used table mask
dict_object size ma_keys ma_values
float_object size ob_fval
long_object size lv_tag ob_digit
bytes_object size ob_size ob_sval
unicode_object size state length asciiobject_size compactunicodeobject_size
gc size collecting frame generation_stats_size generation_stats
gen_object size gi_name gi_iframe gi_frame_state
llist_node next prev
debugger_support eval_breaker remote_debugger_support remote_debugging_enabled debugger_pending_call
 debugger_script_path debugger_script_path_size
"""


def _fields(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for line in text.replace("\n ", " ").strip().split("\n"):
        group, *names = line.split()
        found += [(group, name) for name in names]
    return tuple(found)


FIELDS = {13: _fields(_3_13), 14: _fields(_3_14), 15: _fields(_3_15)}
"""Fields of _Py_DebugOffsets: minor version -> (group, field) of each word after the head, in order."""

FIRST_RELEASES = {15: 0x030F00B4}
"""Minor version of CPython -> first release that uses the list in FIELDS; earlier alphas and betas have another
list.
"""

_LARGE = {"runtime_state", "interpreter_state"}
_MAX_LARGE, _MAX_SIZE = 1 << 24, 1 << 14
"""Maximum size in bytes that _Py_DebugOffsets may state for the structures in _LARGE, and for all other structures."""
_MAX_LOCK = 1 << 10
_NOT_OFFSETS = {"generation_stats_size", "debugger_script_path_size", "asciiobject_size", "compactunicodeobject_size"}


def minor_of(head: bytes) -> int:
    """Return the minor version of CPython that the head of its debug offsets table states.

    Raises:
        FormatError: The data is not the head of a table of CPython 3.
    """
    if len(head) < HEAD or head[:8] != COOKIE:
        raise FormatError("_Py_DebugOffsets", 0, "no cookie")
    version, free_threaded = struct.unpack_from("<QQ", head, 8)
    if version >> 24 != 3 or version >> 32 or free_threaded > 1:
        raise FormatError("_Py_DebugOffsets", 8, f"version {version:#x}, free threading {free_threaded}")
    minor: int = version >> 16 & 0xFF
    return minor


def table_size(minor: int) -> int:
    """Return the size in bytes of the complete table of debug offsets of a minor version of CPython."""
    return HEAD + 8 * len(FIELDS[minor])


def read_table(data: bytes) -> dict[str, dict[str, int]]:
    """Return CPython's table of debug offsets as {group: {field: value}}.

    Raises:
        FormatError: The version is not known, the table is truncated, or an offset lies outside its structure.
    """
    minor = minor_of(data)
    if minor not in FIELDS:
        raise FormatError("_Py_DebugOffsets", 8, f"CPython 3.{minor} is newer than this table's reader")
    version = struct.unpack_from("<Q", data, 8)[0]
    if version < FIRST_RELEASES.get(minor, 0):
        raise FormatError("_Py_DebugOffsets", 8, f"a test release ({version:#x}) with another layout")
    if len(data) < table_size(minor):
        raise FormatError("_Py_DebugOffsets", len(data), "cut off")
    table: dict[str, dict[str, int]] = {}
    for at, (group, field) in enumerate(FIELDS[minor]):
        value = struct.unpack_from("<Q", data, HEAD + 8 * at)[0]
        fields = table.setdefault(group, {})
        fields[field] = value
        if field in _NOT_OFFSETS or field == "size" or "size" not in fields:
            limit = _MAX_LARGE if group in _LARGE else _MAX_SIZE
        else:
            limit = fields["size"] + (group == "bytes_object")
        if value > limit or (value == limit and field != "size" and group != "interpreter_frame"):
            raise FormatError("_Py_DebugOffsets", HEAD + 8 * at, f"{group}.{field} is {value}")
    return table


def _objects(table: Mapping[str, Mapping[str, int]], free_threaded_3_14: bool, shift: int) -> ObjectLayout:
    """Return the layout of CPython objects according to the table of debug offsets.

    Args:
        shift: Number of bytes by which the longer PyObject head of a free-threaded build moves fields.
    """
    objects = replace(
        OBJECTS_3_12,
        type=table["pyobject"]["ob_type"],
        var_size=table["bytes_object"]["ob_size"],
        type_name=table["type_object"]["tp_name"],
        type_flags=table["type_object"]["tp_flags"],
        tuple_items=table["tuple_object"]["ob_item"],
        list_items=table["list_object"]["ob_item"],
        bytes_data=table["bytes_object"]["ob_sval"],
        text_length=table["unicode_object"]["length"],
        text_state=table["unicode_object"]["state"],
        text_ascii=table["unicode_object"]["asciiobject_size"],
        text_compact=table["unicode_object"]["asciiobject_size"] + 16,
        dict_keys=table["dict_object"]["ma_keys"],
        dict_values=table["dict_object"]["ma_values"],
        long_tag=table["long_object"]["lv_tag"],
        long_digits=table["long_object"]["ob_digit"],
        float_value=table["float_object"]["ob_fval"],
        basicsize=32 + shift,
        dictoffset=288 + shift,
        cached_keys=table.get("heap_type_object", {}).get("ht_cached_keys", OBJECTS_3_12.cached_keys + shift),
    )
    return replace(objects, kind_shift=8, compact=1 << 11, ascii=1 << 12) if free_threaded_3_14 else objects


def _frame(frame: Mapping[str, int], minor: int, free_threaded: bool, shift: int) -> FrameLayout:
    return FrameLayout(
        size=max(_frame_size(frame), frame["localsplus"]) + 7 & ~7,
        code=frame["executable"],
        previous=frame["previous"],
        instr=frame["instr_ptr"],
        localsplus=frame["localsplus"],
        owner=frame["owner"],
        tlbc_index=frame.get("tlbc_index", -1) if free_threaded else -1,
        object=frame["instr_ptr"] - 8,
        object_frame=24 + shift,
        object_link=(64 if minor < 14 else 72) + shift,
        code_mask=2**64 - 1 if minor < 14 else 2**64 - 4,
    )


def _code(code: Mapping[str, int], free_threaded: bool, shift: int) -> CodeLayout:
    return CodeLayout(
        filename=code["filename"],
        name=code["name"],
        qualname=code["qualname"],
        firstlineno=code["firstlineno"],
        linetable=code["linetable"],
        bytecode=code["co_code_adaptive"],
        flags=48 + shift,
        names=code["localsplusnames"],
        lines=LineTableFormat.LOCATIONS,
        tlbc=code.get("co_tlbc", -1) if free_threaded else -1,
    )


def read_layout(data: bytes) -> Layout:
    """Return the CPython layout that a debug offsets table states, completed by offsets from the headers of its
    version.

    Raises:
        FormatError: The table is broken or its version is not known.
    """
    table = read_table(data)
    minor = minor_of(data)
    t = bool(struct.unpack_from("<Q", data, 16)[0])
    shift = 16 if t else 0  # the PyObject head of a free-threaded build is longer
    interpreter, thread, frame, code = (
        table[group] for group in ("interpreter_state", "thread_state", "interpreter_frame", "code_object")
    )
    objects = _objects(table, t and minor >= 14, shift)
    base_frame = thread.get("base_frame", -1)
    lock, holder, locked = (interpreter[f"gil_runtime_state{part}"] for part in ("", "_holder", "_locked"))
    _expect(0 <= holder - lock <= _MAX_LOCK and 0 <= locked - lock <= _MAX_LOCK, "a field outside the GIL")
    head = code["linetable"] - objects.type
    _expect(head >= 0 and head % 8 == 0, f"code_object.linetable is {code['linetable']}")
    needed = [thread[name] for name in ("next", "interp", "current_frame", "thread_id", "native_thread_id")]
    return Layout(
        minor=minor,
        free_threaded=t,
        chain=ChainKind.SHIMS,
        runtime=RuntimeLayout(table["runtime_state"]["size"], table["runtime_state"]["interpreters_head"]),
        interpreter=InterpreterLayout(
            next=interpreter["next"],
            id=interpreter["id"],
            threads_head=interpreter["threads_head"],
            modules=interpreter["imports_modules"],
            gil=interpreter["ceval_gil"],
            collecting=interpreter["gc"] + table["gc"]["collecting"],
        ),
        thread=ThreadLayout(
            size=max(*needed, base_frame, thread["datastack_chunk"] + 8) + 8,
            next=thread["next"],
            interp=thread["interp"],
            thread_id=thread["thread_id"],
            native_id=thread["native_thread_id"],
            frame=thread["current_frame"],
            base_frame=base_frame,
            chunk=thread["datastack_chunk"],
            running_task={14: 872, 15: 1032}.get(minor, NONE),
        ),
        frame=_frame(frame, minor, t, shift),
        code=_code(code, t, shift),
        object=objects,
        gil_holder=holder - lock,
        gil_locked=locked - lock,
        awaits=_awaits(table) if minor >= 14 else None,
    )


def _expect(right: bool, what: str) -> None:
    if not right:
        raise FormatError("_Py_DebugOffsets", HEAD, what)


def _frame_size(frame: Mapping[str, int]) -> int:
    """Return the number of bytes that hold every field that is read of a Python frame's fixed part."""
    words = max(frame[name] for name in ("executable", "previous", "instr_ptr")) + 8
    return max(words, (frame["owner"] & ~7) + 8, (frame.get("tlbc_index", 0) & ~7) + 8)


def _awaits(table: dict[str, dict[str, int]]) -> AwaitLayout:
    of_set = table["set_object"]
    return AwaitLayout(
        iframe=table["gen_object"]["gi_iframe"],
        stackpointer=table["interpreter_frame"]["stackpointer"],
        set_used=of_set["used"],
        set_table=of_set["table"],
        set_mask=of_set["mask"],
    )
