"""Offsets of the CPython structures that the profiler reads, by version and build.

All offsets are in bytes from the start of the structure; NONE means that the version does not have the field. Sources:
the headers of each version, compiled and printed by offsetof, then checked on live processes.

The tables are for CPython 3.8 to 3.12 (x86-64, GIL builds), and for objects in all versions. They are valid for every
release of a minor version (of 3.9 from 3.9.5 on), not for alphas and betas. runtime_validation.py checks them against
the live process before it uses them.
"""

from __future__ import annotations

from enum import IntEnum

from pyprof.lazy_dataclasses import dataclass, replace

NONE = -1


class ChainKind(IntEnum):
    """The way in which a version of CPython links the frames of a thread, and what its evaluator leaves on the C stack
    at each call.
    """

    OBJECTS = 0  # 3.8, 3.9: PyFrameObjects, one evaluator call each, nothing on the C stack
    CFRAMES = 1  # 3.10: PyFrameObjects, and a CFrame for each evaluator call
    ENTRIES = (
        2  # 3.11: _PyInterpreterFrames; a CFrame names the innermost one of its evaluator call, is_entry the outermost
    )
    SHIMS = 3  # 3.12 and later: an evaluator call's outermost frame is an entry frame on its C stack


class LineTableFormat(IntEnum):
    """The format of a Python code object's line table."""

    LNOTAB = 0  # 3.8, 3.9
    LINETABLE = 1  # 3.10, PEP 626
    LOCATIONS = 2  # 3.11 and later, PEP 657


@dataclass(frozen=True, slots=True)
class RuntimeLayout:
    """Offsets in CPython's _PyRuntimeState.

    Attributes:
        size: Size of the symbol _PyRuntime, 0 if it differs between releases.
        gil: NONE if the GIL belongs to the interpreter.
        collecting: Flag of the garbage collector, NONE if it belongs to the interpreter.
    """

    size: int
    interpreters_head: int
    gil: int = NONE
    collecting: int = NONE


@dataclass(frozen=True, slots=True)
class InterpreterLayout:
    """Offsets in CPython's PyInterpreterState.

    Attributes:
        modules: Pointer to the dict sys.modules.
        gil: Pointer to the GIL.
    """

    next: int
    id: int
    threads_head: int
    modules: int
    gil: int = NONE
    collecting: int = NONE


@dataclass(frozen=True, slots=True)
class ThreadLayout:
    """Offsets in CPython's PyThreadState.

    Attributes:
        size: Number of bytes to read for all fields.
        thread_id: The pthread_t.
        frame: Pointer to the innermost frame (in 3.11 and 3.12 the CFrame holds it).
        native_id: The kernel's tid, NONE before 3.11.
        cframe: Pointer to the innermost CFrame.
        root_cframe: The CFrame that stands for no evaluator call.
        base_frame: Pointer to the entry frame that stands for no evaluator call (3.15).
        chunk: Pointer to the newest chunk of the data stack.
        cframe_current: Within a CFrame, pointer to the frame that it names.
        cframe_previous: Within a CFrame, pointer to the next outer CFrame.
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
    """Offsets in CPython's PyFrameObject or _PyInterpreterFrame.

    Attributes:
        size: Number of bytes to read.
        instr: f_lasti, prev_instr or instr_ptr.
        object: Pointer to a _PyInterpreterFrame's PyFrameObject.
        object_frame: Within that PyFrameObject, pointer back to the frame.
        object_link: Within that PyFrameObject, first word of the embedded frame.
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
    """Offsets in CPython's PyCodeObject.

    Attributes:
        bytecode: The instructions, NONE if they are a separate object.
        names: Pointer to the tuple of local names.
        lines: Format of the line table.
        tlbc: Pointer to the thread-local copies of the bytecode (free-threaded builds).
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
    """Offsets in basic CPython objects; the state of a str is that of PyASCIIObject.

    Attributes:
        kind_shift: Position of `kind` in the state.
        compact: Mask of `compact` in the state.
        ascii: Mask of `ascii` in the state.
    """

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
    """Offsets in CPython that lead from a coroutine to the one that it awaits: PyGenObject, _PyInterpreterFrame,
    PySetObject.
    """

    iframe: int
    stackpointer: int
    set_used: int
    set_table: int
    set_mask: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of one version and build of CPython.

    Attributes:
        gil_holder: Offset in the GIL of the thread state that holds it.
        gil_locked: Offset in the GIL of the flag that says whether it is held.
        awaits: Offsets from a coroutine to the one that it awaits, None before 3.14.
    """

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


_OBJECTS_3_8 = ObjectLayout(
    type=8,
    var_size=16,
    type_name=24,
    type_flags=168,
    tuple_items=24,
    list_items=24,
    bytes_data=32,
    text_length=16,
    text_state=32,
    text_ascii=48,
    text_compact=72,
    kind_shift=2,
    compact=1 << 5,
    ascii=1 << 6,
    dict_keys=32,
    dict_values=40,
    long_tag=NONE,
    long_digits=24,
    float_value=16,
    basicsize=32,
    dictoffset=288,
    cached_keys=872,
)

OBJECTS_3_12 = replace(_OBJECTS_3_8, text_ascii=40, text_compact=56, long_tag=16, cached_keys=880)
"""Layout of objects in GIL builds of CPython 3.12 and later; for later versions, the offsets that their own table
states replace these.
"""

_3_8 = Layout(
    minor=8,
    free_threaded=False,
    chain=ChainKind.OBJECTS,
    runtime=RuntimeLayout(size=1464, interpreters_head=32, gil=1152, collecting=544),
    interpreter=InterpreterLayout(next=0, id=16, threads_head=8, modules=56),
    thread=ThreadLayout(size=184, next=8, interp=16, thread_id=176, frame=24),
    frame=FrameLayout(size=112, code=32, previous=24, instr=104, localsplus=360),
    code=CodeLayout(
        filename=104,
        name=112,
        qualname=NONE,
        firstlineno=40,
        linetable=120,
        bytecode=NONE,
        flags=36,
        names=72,
        lines=LineTableFormat.LNOTAB,
    ),
    object=_OBJECTS_3_8,
    gil_holder=8,
    gil_locked=16,
)

_3_9 = replace(
    _3_8,
    minor=9,
    runtime=RuntimeLayout(size=656, interpreters_head=32, gil=352),
    interpreter=InterpreterLayout(next=0, id=24, threads_head=8, modules=856, collecting=816),
)

_3_10 = replace(
    _3_9,
    minor=10,
    chain=ChainKind.CFRAMES,
    runtime=RuntimeLayout(size=672, interpreters_head=32, gil=352),
    thread=replace(_3_9.thread, cframe=48, cframe_previous=8, root_cframe=264, size=272),
    frame=FrameLayout(size=104, code=32, previous=24, instr=96, localsplus=352),
    code=replace(_3_9.code, lines=LineTableFormat.LINETABLE),
)

_3_11 = Layout(
    minor=11,
    free_threaded=False,
    chain=ChainKind.ENTRIES,
    runtime=RuntimeLayout(size=0, interpreters_head=40, gil=360),
    interpreter=InterpreterLayout(next=0, id=48, threads_head=16, modules=888, collecting=848),
    thread=ThreadLayout(
        size=352,
        next=8,
        interp=16,
        thread_id=152,
        native_id=160,
        frame=56,
        cframe=56,
        root_cframe=336,
        chunk=296,
        cframe_current=8,
        cframe_previous=16,
    ),
    frame=FrameLayout(size=72, code=32, previous=48, instr=56, localsplus=72, is_entry=68, owner=69, object=40),
    code=CodeLayout(
        filename=112,
        name=120,
        qualname=128,
        firstlineno=72,
        linetable=136,
        bytecode=184,
        flags=48,
        names=96,
        lines=LineTableFormat.LOCATIONS,
    ),
    object=_OBJECTS_3_8,
    gil_holder=8,
    gil_locked=16,
)

_3_12 = replace(
    _3_11,
    minor=12,
    chain=ChainKind.SHIMS,
    runtime=RuntimeLayout(size=0, interpreters_head=40),
    interpreter=InterpreterLayout(next=0, id=8, threads_head=72, modules=944, gil=384, collecting=312),
    thread=ThreadLayout(
        size=288,
        next=8,
        interp=16,
        thread_id=136,
        native_id=144,
        frame=56,
        cframe=56,
        root_cframe=272,
        chunk=232,
        cframe_current=0,
        cframe_previous=8,
    ),
    frame=FrameLayout(
        size=72, code=0, previous=8, instr=56, localsplus=72, owner=70, object=48, object_frame=24, object_link=48
    ),
    code=replace(_3_11.code, bytecode=192, firstlineno=68),
    object=OBJECTS_3_12,
)

LAYOUTS: dict[int, Layout] = {layout.minor: layout for layout in (_3_8, _3_9, _3_10, _3_11, _3_12)}
"""Layouts of CPython by minor version; later versions carry their own table (debug_offsets.py)."""
