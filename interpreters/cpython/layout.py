"""Where CPython keeps what a profiler reads: one value a version and build. tables.py and debug_offsets.py make them.

All offsets are bytes from the start of the structure; NONE: that version does not have the field. Sources: the headers
of each version, compiled and printed by offsetof; then read from live processes.
"""

from __future__ import annotations

from enum import IntEnum

from pyprof.records import dataclass

NONE = -1


class ChainKind(IntEnum):
    """How a thread's frames hang together, and what stands on the evaluator's C stack for each activation."""

    OBJECTS = 0  # 3.8, 3.9: PyFrameObjects, one activation each, nothing on the stack
    CFRAMES = 1  # 3.10: the same, and a CFrame for each activation
    ENTRIES = (
        2  # 3.11: _PyInterpreterFrames; a CFrame names the innermost one of its activation, is_entry the outermost
    )
    SHIMS = 3  # 3.12 and later: an activation's outermost frame is an entry frame on its C stack


class LineTableFormat(IntEnum):
    """The format of a code object's table of lines."""

    LNOTAB = 0  # 3.8, 3.9
    LINETABLE = 1  # 3.10, PEP 626
    LOCATIONS = 2  # 3.11 and later, PEP 657


@dataclass(frozen=True, slots=True)
class RuntimeLayout:
    """_PyRuntimeState. size: of its symbol, 0 where it differs between releases. gil, collecting: NONE if they belong
    to the interpreter.
    """

    size: int
    interpreters_head: int
    gil: int = NONE
    collecting: int = NONE


@dataclass(frozen=True, slots=True)
class InterpreterLayout:
    """PyInterpreterState. gil: of the pointer to it. modules: of the pointer to the dict sys.modules."""

    next: int
    id: int
    threads_head: int
    modules: int
    gil: int = NONE
    collecting: int = NONE


@dataclass(frozen=True, slots=True)
class ThreadLayout:
    """PyThreadState. size: bytes to read for all of these. frame: of the pointer to the innermost frame (3.11, 3.12:
    the CFrame has it). cframe: of the pointer to the innermost CFrame; cframe_current, cframe_previous: within one.

    native_id: the kernel's tid, NONE before 3.11. root_cframe: of the CFrame that stands for no activation.
    base_frame: of the pointer to the entry frame that stands for none (3.15).
    """

    size: int
    next: int
    interp: int
    thread_id: int
    frame: int
    native_id: int = NONE
    cframe: int = NONE
    root_cframe: int = NONE
    base_frame: int = NONE
    chunk: int = NONE
    cframe_current: int = NONE
    cframe_previous: int = NONE
    running_task: int = NONE


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """PyFrameObject or _PyInterpreterFrame. size: bytes to read. instr: lasti, prev_instr or instr_ptr. object: of the
    pointer to a _PyInterpreterFrame's PyFrameObject; object_frame, object_link: in that, of the pointer back, and of
    the first word of its own room for a frame.
    """

    size: int
    code: int
    previous: int
    instr: int
    localsplus: int
    is_entry: int = NONE
    owner: int = NONE
    tlbc_index: int = NONE
    object: int = NONE
    object_frame: int = NONE
    object_link: int = NONE
    code_mask: int = 2**64 - 1


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """PyCodeObject. head: bytes from ob_type on that distinguish code objects (they hold all that follow).

    bytecode: of the instructions, NONE where they are an object of their own. names: the tuple of local names.
    """

    filename: int
    name: int
    qualname: int
    firstlineno: int
    linetable: int
    bytecode: int
    flags: int
    names: int
    lines: LineTableFormat
    tlbc: int = NONE


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Objects that everything is made of. state bits as in PyASCIIObject: kind_shift; compact and ascii: masks."""

    type: int
    var_size: int
    type_name: int
    type_flags: int
    tuple_items: int
    list_items: int
    bytes_data: int
    text_length: int
    text_state: int
    text_ascii: int
    text_compact: int
    kind_shift: int
    compact: int
    ascii: int
    dict_keys: int
    dict_values: int
    long_tag: int
    long_digits: int
    float_value: int
    basicsize: int
    dictoffset: int
    cached_keys: int


@dataclass(frozen=True, slots=True)
class AwaitLayout:
    """What leads from a coroutine to the one that it awaits: PyGenObject, _PyInterpreterFrame, PySetObject."""

    iframe: int
    stackpointer: int
    set_used: int
    set_table: int
    set_mask: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One version and build of CPython. gil_holder, gil_locked: within the GIL. awaits: None before 3.14."""

    minor: int
    free_threaded: bool
    chain: ChainKind
    runtime: RuntimeLayout
    interpreter: InterpreterLayout
    thread: ThreadLayout
    frame: FrameLayout
    code: CodeLayout
    object: ObjectLayout
    gil_holder: int
    gil_locked: int
    awaits: AwaitLayout | None = None

    @property
    def version(self) -> str:
        return f"3.{self.minor}{'t' if self.free_threaded else ''}"
