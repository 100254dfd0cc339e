"""Tests of the reader of V8 with made memory: names, lines, inlined functions, rules, and what lies."""

from __future__ import annotations

import random
import struct
from bisect import bisect_right

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.runtime_code.v8.function_search_by_bytecode import find_by_bytecode, find_script_list, read_script_list
from pyprof.runtime_code.v8.generated_code_reader import UNREAD
from pyprof.runtime_code.v8.unwind_rules import Builtins, V8FrameRules
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


def test_function_whose_jsfunction_is_gone_is_found_in_the_scripts_by_its_bytecode() -> None:
    made = MadeHeap()
    heap = made.open().heap
    slot = find_script_list(heap, made.roots)
    assert slot == made.roots + 16
    scripts = read_script_list(heap, slot)
    assert find_by_bytecode(heap, scripts, {made.bytecode, 1}) == {made.bytecode: made.inner}
    made.put(made.inner - 1 + 8, struct.pack("<Q", made.code(BASELINE, 11, made.bytecode, 0, 32)))
    heap = made.open().heap
    assert find_by_bytecode(heap, scripts, {made.bytecode}) == {made.bytecode: made.inner}
    assert find_by_bytecode(heap, [made.bytecode, 0], {made.bytecode}) == {}
    assert find_script_list(heap, made.roots + 24) == 0


def test_rows_say_where_compiled_code_has_its_frame() -> None:
    rows = V8FrameRules(X86_64).compiled(START, OPTIMIZED)
    no_frame, linked = "cfa = sp + 8; ", "cfa = fp + 16; "
    found = {at: rule_at(rows, START + at) for at in (0, 4, 5, 8, 30, 54, 55)}
    assert [found[at].startswith(no_frame) for at in (0, 4, 55)] == [True] * 3
    assert [found[at].startswith(linked) for at in (8, 30, 54)] == [True] * 3
    assert found[5].startswith("cfa = sp + 16; ")


def test_rows_of_the_baseline_prologue_say_whether_its_caller_has_a_frame() -> None:
    link, push, pop = b"\x55\x48\x89\xe5", b"\x41\x53", b"\x41\x5b"  # push %r11, pop %r11
    leave = b"\x48\x89\xec\x5d\x49\x8b\x85\x20\x02\x00\x00\xc3"  # mov %rbp,%rsp; pop %rbp; mov N(%r13),%rax; ret
    code = b"\x90" * 4 + pop + link + b"\x56\x57" + push + leave[4:] + push + link + b"\x6a\x2e" + leave
    rules = V8FrameRules(X86_64)
    rows = rules.builtin("BaselineOutOfLinePrologue", START, code)
    begins = (
        "ra = expr(",
        "ra = r11 - 1",
        "ra = [cfa - 8]",
        "ra = r11",
        "ra = [cfa - 8]",
        "ra = r11",
        "ra = [cfa - 8]",
    )
    found = {at: rule_at(rows, START + at) for at in (0, 6, 7, 10, 14, 22, 24)}
    assert [begin in text for begin, text in zip(begins, found.values(), strict=True)] == [True] * 7
    call = b"\x90" * 8 + b"\xe8\x00\x00\x00\x00" + b"\x90" * 8
    caller = rules.compiled(START, call)
    assert [rule_at(caller, START + at)[:12] for at in (8, 11, 12)] == ["cfa = sp + 8", "cfa = sp + 8", "cfa = fp + 1"]
    assert rules.builtin("BaselineOutOfLinePrologue", START, code[:20]) is None


def test_functions_that_continue_deoptimised_code_begin_one_byte_earlier() -> None:
    builtins = Builtins([(START, "Other"), (START + 64, "InterpreterEnterAtBytecode")], ((START, START + 128),))
    assert builtins.find(START + 62) == ("Other", START, START + 63)
    assert builtins.find(START + 63) == ("InterpreterEnterAtBytecode", START + 63, START + 128)
    code = b"\xcc\x50\x55\x48\x89\xe5\x6a\x2c\x48\x89\xec\x5d\x58\xc3"  # push %rax; link ... pop %rax; ret
    rules = V8FrameRules(X86_64)
    rows = rules.builtin("BaselineOrInterpreterEnterAtBytecode", START, code)
    assert [rule_at(rows, START + at)[:11] for at in (0, 5, 6, 11, 12)] == [
        "cfa = fp + ",
        "cfa = fp + ",
        "cfa = [fp];",
        "cfa = [fp];",
        "cfa = fp + ",
    ]
    rows = rules.builtin("ContinueToJavaScriptBuiltin", START, b"\xcc\x41\x5e\x48\x8b\x6c\x24\x28\xc3")
    assert rows is not None
    assert rows.end == START + 3


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
