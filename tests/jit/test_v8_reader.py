"""Tests of the reader of V8 with made memory: names, lines, inlined functions, rules, and what lies."""

from __future__ import annotations

import random
import struct
from bisect import bisect_right

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.runtime_code.v8.js_frames import UNREAD
from pyprof.runtime_code.v8.unwind_rules import V8FrameRules
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows
from tests.jit.js_engine import BASE, BASELINE, CODE, OPTIMIZED, MadeHeap, exhaust, image

START = CODE + 16


def rule_at(rows: FunctionRows | None, pc: int) -> str:
    assert rows is not None
    return describe_rule(rows.rules[bisect_right(rows.starts, pc) - 1], X86_64)


def test_optimised_code_has_its_function_and_the_inlined_ones_with_lines() -> None:
    engine = MadeHeap().open()
    code = engine.read_code(START + 3, BASE)
    assert code is not None
    assert (code.start, code.end, code.name) == (START, START + len(OPTIMIZED), "outer")
    assert engine.find_places(code, START + 15) == (("outer", "/srv/a.js", 3),)
    assert engine.find_places(code, START + 30) == (("inner", "/srv/a.js", 1), ("outer", "/srv/a.js", 3))
    assert engine.find_places(code, START + 1) == (("outer", "/srv/a.js", 2),)
    assert engine.read_code(code.end, BASE) is None


def test_function_of_baseline_code_is_that_of_its_frame_if_it_has_this_bytecode() -> None:
    made = MadeHeap()
    engine = made.open()
    code = engine.read_code(BASELINE + 20, BASE)
    assert code is not None
    assert (code.name, code.owner) == (UNREAD, made.bytecode)
    assert engine.find_shared(made.function, made.bytecode, code.pointer) == made.inner
    assert engine.find_shared(made.function, made.bytecode + 8, 1) == 0
    assert engine.find_shared(made.outer, made.bytecode, code.pointer) == 0


def test_function_that_the_garbage_collector_has_moved_is_followed() -> None:
    made = MadeHeap()
    moved = made.object_words(*struct.unpack_from("<4Q", made.data, made.function - 1 - BASE))
    made.put(made.function - 1, struct.pack("<Q", moved - 1))
    assert made.open().find_shared(made.function, made.bytecode, 0) == made.inner


def test_rows_say_where_compiled_code_has_its_frame() -> None:
    rows = V8FrameRules(X86_64).compiled(START, OPTIMIZED)
    no_frame, linked = "cfa = sp + 8; ", "cfa = fp + 16; "
    found = {at: rule_at(rows, START + at) for at in (0, 4, 5, 8, 30, 54, 55)}
    assert [found[at].startswith(no_frame) for at in (0, 4, 55)] == [True] * 3
    assert [found[at].startswith(linked) for at in (8, 30, 54)] == [True] * 3
    assert found[5].startswith("cfa = sp + 16; ")


def test_code_that_is_changed_anywhere_is_read_within_bounds() -> None:
    data, chosen = image(), random.Random(1)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(chosen.randrange(1, 8)):
            at = chosen.randrange(0, 0x4200)
            broken[at : at + 4] = chosen.choice((b"\xff" * 4, bytes(4), chosen.randbytes(4)))
        exhaust(bytes(broken[: len(data)]))


def test_strings_that_contain_themselves_are_refused() -> None:
    made = MadeHeap()
    engine = made.open()
    avma = made.end
    loop = made.object_words(made.map_of(9), 10 << 32, avma + 1, avma + 1)
    engine = made.open()
    with pytest.raises(FormatError, match="too many parts"):
        engine.heap.text(loop, 100)


def test_unknown_version_is_refused_in_one_sentence() -> None:
    made = MadeHeap()
    made.put(made.symbols[b"_ZN2v88internal7Version6minor_E"], struct.pack("<i", 99))
    with pytest.raises(FormatError, match=r"version 11\.99 is not known"):
        made.open()
