"""Layouts of CPython 3.8 to 3.12 (x86-64, GIL builds), and of objects in all versions.

Source: offsetof and sizeof of each version's headers. They are valid for every release of a minor version (of 3.9 from
3.9.5 on), not for alphas and betas. runtime_state.py checks them against the live process before it uses them.
"""

from __future__ import annotations

from pyprof.interpreters.cpython.layout import (
    NONE,
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
from pyprof.records import replace

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
"""Layout of objects in GIL builds of CPython 3.12 and later; later versions replace what their own table of offsets
states.
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
