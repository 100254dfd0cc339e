"""Tests of the reader of Java virtual machines with made memory: names, lines, scopes, rules, and what lies."""

from __future__ import annotations

import random
import struct
import time
from bisect import bisect_right

import numpy as np
import pytest

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.hotspot.code_cache import Blob, read_stubs
from pyprof.runtime_code.hotspot.java_code_source import HotspotCode
from pyprof.runtime_code.hotspot.methods import read_unsigned5, show_class
from pyprof.runtime_code.hotspot.unwind_rules import Codelet, FrameRules
from pyprof.runtime_code.hotspot.vm_structs import SYMBOLS, VmMemory
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows
from pyprof.unwind.sample_memory import LaneMemory, read_words
from tests.jit.java_vm import BASE, CODE, ENTRY, HEAP, LEAVE, SYMBOL_TABLE, exhaust, image, open_vm
from tests.jit.memory import Memory
from tests.unwind.made_stacks import MadeLane, batch_of


def rule_at(rows: FunctionRows | None, pc: int) -> str:
    assert rows is not None
    return describe_rule(rows.rules[bisect_right(rows.starts, pc) - 1], X86_64)


def written(value: int, excludes_zero: bool) -> bytes:
    """Write a number as HotSpot does (UNSIGNED5::write_uint)."""
    low = 191 if excludes_zero else 192
    out = bytearray()
    for _ in range(4):
        if value < low:
            break
        value -= low
        out.append(excludes_zero + low + value % 64)
        value //= 64
    return bytes((*out, excludes_zero + value))


@pytest.mark.parametrize("excludes_zero", [False, True])
def test_compressed_numbers_are_read_as_they_are_written(excludes_zero: bool) -> None:
    for value in (0, 1, 190, 191, 192, 193, 12_000, 1 << 20, (1 << 31) - 1):
        data = written(value, excludes_zero)
        assert read_unsigned5(b"x" + data + b"\xff", 1, excludes_zero) == (value, 1 + len(data))
    with pytest.raises(FormatError):
        read_unsigned5(b"\xff\xff", 0, excludes_zero)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("java/util/HashMap$Node", "java.util.HashMap$Node"),
        ("Main$$Lambda$14+0x0000000800c03000", "Main$$Lambda"),
        ("Main$$Lambda$14/0x0000000800c03000", "Main$$Lambda"),
        ("Main$$Lambda+0x00007f12c4003000", "Main$$Lambda"),
        ("java/lang/invoke/LambdaForm$MH+0x0000000800c00400", "java.lang.invoke.LambdaForm$MH"),
        ("java/lang/invoke/LambdaForm$DMH/1234567", "java.lang.invoke.LambdaForm$DMH"),
        ("a/B$1", "a.B$1"),
    ],
)
def test_classes_are_shown_as_programmers_write_them(name: str, shown: str) -> None:
    assert show_class(name) == shown


def test_compiled_method_has_its_name_and_those_of_inlined_methods() -> None:
    vm = open_vm(image())
    code = vm.read_code(CODE + 3)
    assert code is not None
    assert (code.name, code.file) == ("p.Own$$Lambda.run", "Own.java")
    vm.fill(code)
    assert code.scopes is not None
    found = {at: [(vm.methods.find(method), index) for method, index in code.scopes.find(at)] for at in (13, 15, 16)}
    own = vm.methods.find(code.blob.method)
    assert own is not None
    assert found == {13: [(own, 11), (own, 1)], 15: [(own, 1)], 16: []}
    assert [own.line_at(index) for index in (0, 1, 10, 11)] == [0, 4, 4, 24]
    assert vm.read_code(CODE - 0x1F8) is None
    assert vm.read_code(HEAP + 0x2000) is None


def test_jdk_8_is_told_from_25_which_is_the_version_of_its_machine() -> None:
    vm = open_vm(image(is_jdk_8=True))
    code = vm.read_code(CODE)
    assert code is not None
    vm.fill(code)
    assert code.scopes is not None
    assert vm.methods.version == 8
    assert [index for _, index in code.scopes.find(13)] == [11, 1]


def test_rows_of_a_compiled_method_follow_its_prologue_and_epilogue() -> None:
    vm = open_vm(image())
    code = vm.read_code(CODE)
    assert code is not None
    vm.fill(code)
    assert [found.blob for found in vm.list_code()] == [code.blob]
    entered, pushed, complete = (
        "cfa = sp + 8; ra = [cfa - 8]",
        "cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]",
        "cfa = sp + 64; fp = [cfa - 16]; ra = [cfa - 8]",
    )
    left = CODE + len(ENTRY) + 4
    wanted = {CODE: entered, CODE + 7: entered, CODE + 8: pushed, CODE + 12: complete, left: complete}
    wanted |= {left + 4: pushed, left + 5: entered, left + len(LEAVE) - 1: entered}
    assert {pc: plain(rule_at(code.rows, pc)) for pc in wanted} == wanted


def test_return_address_behind_an_epilogue_finds_the_whole_frame() -> None:
    """Look up a return address that a stub has replaced by that of an exception handler."""
    vm = open_vm(image())
    code = vm.read_code(CODE)
    assert code is not None
    last = CODE + len(ENTRY) + 4 + len(LEAVE) - 1
    found = {exact: plain(rule_at(vm.rows(code, last, exact), last)) for exact in (True, False)}
    assert found[True] == "cfa = sp + 8; ra = [cfa - 8]"
    assert found[False] == "cfa = sp + 64; fp = [cfa - 16]; ra = [cfa - 8]"


def test_samples_since_the_last_check_get_the_code_that_replaced_another() -> None:
    memory = Memory()
    memory.put(BASE, image())
    space = AddressSpace(1, 1, 1, (), memory.read, "/")
    symbols = [(name, SYMBOL_TABLE + 8 * at) for at, name in enumerate(SYMBOLS)]
    source = HotspotCode(X86_64, Diagnostics())
    first, second, between, third = (time.monotonic_ns() + hours * 3_600_000_000_000 for hours in range(1, 5))
    assert source.update(CodeScan(space, X86_64, 0, first, symbols))
    old = source.spans.find(CODE, first)
    assert old is not None
    assert not source.update(CodeScan(space, X86_64, first, second, symbols))
    assert source.spans.find(CODE, second) is old
    compile_id = HEAP - BASE + 0x210 + 304
    memory.pieces[BASE][compile_id : compile_id + 4] = struct.pack("<i", 7)
    assert source.update(CodeScan(space, X86_64, second, third, symbols))
    new = source.spans.find(CODE, between)
    assert new is not None
    assert (old.value.blob.compile_id, new.value.blob.compile_id) == (0, 7)


def test_memory_is_read_by_pages_until_it_is_renewed() -> None:
    memory = Memory()
    memory.put(0x1000, struct.pack("<512Q", *range(512)) + b"name\0")
    vm = VmMemory(memory.read)
    assert [vm.word(0x1000 + 8 * at) for at in range(512)] == [*range(512)]
    assert memory.reads == 1
    assert (vm.number(0x1FFC, 8), vm.text(0x2000)) == (struct.unpack("<Q", b"\0\0\0\0name")[0], "name")
    memory.words(0x1000, 7)
    assert vm.word(0x1000) == 0
    vm.renew(memory.read)
    assert vm.word(0x1000) == 7
    with pytest.raises(FormatError):
        vm.word(0x1008)


def interpreted(seed: int) -> tuple[SampleBatch, Walk]:
    """Return samples whose frames are interpreter frames, some of which do not hold what they should."""
    chance = random.Random(seed)
    lanes, pcs, sps, starts = [], [], [], [0]
    for _ in range(20):
        sp, memory = 0x7000, {0x7000: 1}
        for depth in range(chance.randrange(5)):
            above, fp = sp + chance.choice((0x100, 0x180)), sp + chance.choice((0x50, 0x60))
            slots = {fp + 8: 0x400000 + depth + 1, fp - 8: above, fp - 24: 0x600 + depth, fp - 64: 0x700 + depth}
            memory |= {avma: word for avma, word in slots.items() if chance.random() < 0.9}
            pcs.append(0x400000 + depth)
            sps.append(sp)
            sp = above
        pcs.append(0x400000 + len(pcs) - starts[-1])
        sps.append(sp)
        starts.append(len(pcs))
        lanes.append(MadeLane({}, memory, [], 0x7000, chance.choice((0, 0x200, 0x400))))
    batch, n, count = batch_of(X86_64, lanes), len(lanes), len(pcs)
    flags, trust, none = np.zeros(count, np.bool_), np.zeros(count, np.uint8), np.zeros(n, np.uint64)
    end = np.full(n, StackEnd.ROOT, np.uint8)
    columns = np.array(starts), np.array(pcs, np.uint64), flags, trust, np.array(sps, np.uint64)
    return batch, Walk(*columns, end, none, none, np.zeros(n, np.bool_))


def test_interpreter_frames_of_many_samples_are_those_of_single_samples() -> None:
    vm, several = open_vm(image()), 0
    for seed in range(10):
        batch, walk = interpreted(seed)
        frames = np.arange(len(walk.pc))
        lanes = np.repeat(np.arange(len(walk)), np.diff(walk.start))
        places = list(zip(lanes.tolist(), frames.tolist(), strict=True))
        wanted = [open_vm(image()).find_method(batch, walk, *at, LaneMemory(batch, at[0])) for at in places]
        assert vm.find_methods(batch, walk, lanes, frames) == wanted
        assert vm.find_methods(batch, walk, lanes[1::2], frames[1::2]) == wanted[1::2]
        avmas = np.uint64(0x6FF8) + np.arange(len(lanes), dtype=np.uint64) * np.uint64(20)
        single = [
            LaneMemory(batch, lane).word(avma) or 0 for lane, avma in zip(lanes.tolist(), avmas.tolist(), strict=True)
        ]
        assert read_words(batch, lanes, [avmas])[0].tolist() == [word * (at % 2 == 0) for at, word in enumerate(single)]
        several += sum(method > 0 for method, _ in wanted)
    assert several > 50


def plain(rule: str) -> str:
    """Return a rule without the registers that are lost."""
    return "; ".join(part for part in rule.split("; ") if "undefined" not in part)


BEGIN, END = b"\x55\x48\x83\xec\x30", b"\x48\x83\xc4\x30\x5d"
"""push %rbp, sub $48,%rsp; add $48,%rsp, pop %rbp."""
COMPARE = b"\x2b\xca\x51\x0f\x4e\xd0\x85\xd2\x74\x02\x90\x90\x58\xd1\xf8\xeb\x02\x90\x59\x90"
COMPRESS = b"\x52\x8b\xc2\xb9\x00\xff\x00\xff\x90\x58\xeb\x06\x33\xc0\x48\x83\xc4\x08\x90"
CHECK = b"\x49\x3b\xa7\xb8\x03\0\0\x0f\x82\x02\0\0\0\x90\x90\x49\x3b\xa7\x40\x03\0\0\x0f\x87\x01\0\0\0\xc3"


@pytest.mark.parametrize(
    ("code", "sizes"),
    [
        (COMPARE, {0: 64, 2: 64, 3: 72, 11: 72, 12: 72, 13: 64, 15: 64, 17: 72, 18: 72, 19: 64}),
        (COMPARE[:-2] + b"\x90\x90", {3: 64, 12: 64, 18: 64}),
        (COMPRESS, {0: 64, 1: 72, 9: 72, 10: 64, 12: 72, 14: 72, 18: 64}),
        (COMPRESS.replace(b"\x33", b"\x31"), {1: 64, 9: 64}),
        (b"\xff\x74\x24\x10\x8f\x44\x24\x18\x90", {3: 64, 4: 72, 7: 72, 8: 64}),
        (b"\xc9\x49\x81\x7f\x08\0\0\0\0\x0f\x85\0\0\0\0\xc3\x90", {0: 64, 1: 8, 9: 8, 15: 8, 16: 64}),
        (END + CHECK, {4: 16, 5: 8, 12: 8, 18: 64, 20: 8, 27: 8, 33: 8}),
        (END + CHECK.replace(b"\xa7\xb8", b"\x97\xb8"), {4: 16, 12: 64, 20: 64}),
    ],
    ids=[
        "compareTo",
        "other pop",
        "compress",
        "other end",
        "copy",
        "leave",
        "check of the reserved stack",
        "other check",
    ],
)
def test_words_that_compiled_code_pushes_and_pops_inside_its_frame_are_counted(
    code: bytes, sizes: dict[int, int]
) -> None:
    whole = BEGIN + code + b"\x90" * 8
    compiled = Blob(0x800, b"", "nmethod", 0x1000, 0x1000 + len(whole), 64, len(BEGIN))
    rows = FrameRules(X86_64).compiled(compiled, whole, 0)
    assert rows is not None
    found = {at: rows.rules[bisect_right(rows.starts, 0x1000 + len(BEGIN) + at) - 1].cfa_off for at in sizes}
    assert found == sizes


def test_entry_of_an_interpreted_method_has_the_callers_sp_in_a_register() -> None:
    frame = b"\x55\x48\x8b\xec\x41\x55"
    code = (
        b"\x48\x8b\x53\x08"
        + b"\x58\x4c\x8d\x74\xcc\xf8"
        + b"\x50"
        + frame
        + b"\x90"
        + b"\xc9\x41\x5d\x48\x8b\xe3\x41\xff\xe5"
    )
    codelet = Codelet(0x1000, 0x1000 + len(code), "method entry point (kind = zerolocals)")
    rows = FrameRules(X86_64).codelet(codelet, code)
    assert plain(rule_at(rows, 0x1003)).startswith("cfa = sp + 8; sp = ")
    assert plain(rule_at(rows, 0x1003)).endswith("ra = [cfa - 8]")
    assert plain(rule_at(rows, 0x1005)).endswith("ra = rax")
    built = 0x1000 + code.index(frame)
    assert plain(rule_at(rows, built + 1)).startswith("cfa = sp + 16")
    inside = "cfa = fp + 16; fp = [cfa - 16]; sp = [cfa - 24]; ra = [cfa - 8]"
    assert plain(rule_at(rows, built + 6)) == inside
    assert plain(rule_at(rows, built + 7)) == inside
    assert plain(rule_at(rows, built + 8)).endswith("ra = [cfa - 8]")
    assert plain(rule_at(rows, built + 10)).endswith("ra = r13")


def blob(name: str, code: bytes, frame_size: int = 0) -> Blob:
    return Blob(0x800, b"", name, 0x1000, 0x1000 + len(code), frame_size, 0)


def test_adapter_that_calls_the_machine_finds_the_saved_sp() -> None:
    call, rest = b"\x90\xe8\0\0\0\0", b"\xc5\xf8\x77\x48\x0f\xae\x0c\x24\x48\x81\xc4\x80\x0a\0\0\x90"
    rows = FrameRules(X86_64).adapter(blob("I2C/C2I adapters", call + rest), call + rest)
    lookup = 0x1000 + len(call) - 1
    assert plain(rule_at(rows, lookup)) == f"cfa = [sp + {0xA90}]; fp = [sp + {0xAD0}]; sp = cfa + 8; ra = [cfa]"
    assert plain(rule_at(rows, lookup + 1)) == "cfa = sp + 8; ra = [cfa - 8]"


def test_stub_that_pushes_registers_has_rows_for_each_push_and_pop() -> None:
    code = b"\x57\x56\x51" + b"\x90" * 4 + b"\x59\x5e\x5f\xc3"
    rows = FrameRules(X86_64).stub(blob("slow_subtype_check", code), code)
    sizes = [8, 16, 24, 32, 32, 32, 32, 32, 24, 16, 8]
    assert [plain(rule_at(rows, 0x1000 + at)) for at in range(len(code))] == [
        f"cfa = sp + {size}; ra = [cfa - 8]" for size in sizes
    ]


def test_stub_that_pushes_registers_may_make_room_for_more() -> None:
    code = b"\x57\x56\x48\x83\xec\x20\x90\x48\x83\xc4\x20\x90\x5e\x5f\xc3"
    rows = FrameRules(X86_64).stub(blob("slow_subtype_check", code), code)
    wanted = {0: 8, 1: 16, 2: 24, 6: 56, 7: 56, 11: 24, 12: 24, 13: 16, 14: 8}
    assert {at: plain(rule_at(rows, 0x1000 + at)) for at in wanted} == {
        at: f"cfa = sp + {size}; ra = [cfa - 8]" for at, size in wanted.items()
    }
    assert FrameRules(X86_64).stub(blob("other", code[:7] + code[11:]), code[:7] + code[11:]) is None


def test_stub_that_continues_at_an_exception_handler_has_the_pc_in_a_register() -> None:
    code = b"\x55\x48\x8b\xec\x90\x48\x89\x45\x08\xc9\x59\xff\xe1"
    rows = FrameRules(X86_64).stub(blob("handle_exception_from_callee Runtime1 stub", code, 16), code)
    linked = "cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]"
    wanted = {9: linked, 10: "cfa = sp + 8; ra = [cfa - 8]", 11: "cfa = sp; ra = rcx"}
    assert {at: plain(rule_at(rows, 0x1000 + at)) for at in wanted} == wanted


def test_entry_barrier_has_a_word_between_its_frame_record_and_its_return_address() -> None:
    code = b"\x90\x6a\xff\x55\x48\x8b\xec\x57\xff\xd0\xc9\x48\x83\xc4\x08\xc3\x90"
    rows = FrameRules(X86_64).entry_barrier(blob("StubRoutines (2)", code), code)
    assert rows is not None
    assert (rows.start, rows.end) == (0x1001, 0x1010)
    inside, marked = "cfa = fp + 24; fp = [cfa - 24]; ra = [cfa - 8]", "cfa = sp + 16; ra = [cfa - 8]"
    entered, half = "cfa = sp + 8; ra = [cfa - 8]", "cfa = sp + 24; fp = [cfa - 24]; ra = [cfa - 8]"
    wanted = {0x1001: entered, 0x1003: marked, 0x1004: half, 0x1007: inside, 0x1009: inside, 0x100A: inside}
    wanted |= {0x100B: marked, 0x100F: entered}
    assert {pc: plain(rule_at(rows, pc)) for pc in wanted} == wanted
    assert FrameRules(X86_64).entry_barrier(blob("StubRoutines (1)", b"\xc3"), b"\xc3") is None


@pytest.mark.parametrize("index", [(), (7,)], ids=["JDK 11", "JDK 8"])
def test_stubs_have_the_names_of_their_descriptions(index: tuple[int, ...]) -> None:
    memory = Memory()
    texts = b"jbyte_arraycopy\0" + b"Stub Generator call_stub_stub\0" + b"elsewhere\0"
    names = [0x10_0100 + texts.index(text) for text in (b"jbyte", b"Stub G", b"else")]
    code = 0x7F00_0000_0000
    places = [(code + 0x40, code + 0x60), (code + 0x10, code + 0x20), (code + 0x400, code + 0x420)]
    nodes = [0x10_0200 + 64 * number for number in range(3)]
    listed = b"".join(
        struct.pack("<8Q", after, 0, name, *index, *place, *bytes(3 - len(index)))
        for after, name, place in zip([*nodes[1:], nodes[0]], names, places, strict=True)
    )
    head = struct.pack("<Q", nodes[0]).ljust(0x100, b"\0") + texts.ljust(0x100, b"\0")
    memory.put(0x10_0000, head + listed + bytes(300))
    found = read_stubs(VmMemory(memory.read), 0x10_0000, code, code + 0x100)
    assert {(stub.start, stub.end, stub.name) for stub in found} == {
        (code + 0x10, code + 0x20, "call_stub"),
        (code + 0x40, code + 0x60, "jbyte_arraycopy"),
    }


def changed(offset: int, content: bytes) -> bytes:
    data = bytearray(image())
    data[offset : offset + len(content)] = content
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        image()[:0x100],
        changed(8, struct.pack("<Q", 0)),
        changed(8, struct.pack("<Q", 1 << 40)),
        changed(0, struct.pack("<Q", 1 << 63)),
        image(heap_array=17),
        image(heap_array=0),
    ],
    ids=["empty", "cut", "stride 0", "stride", "address", "heaps", "no heaps"],
)
def test_broken_description_of_the_machine_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        open_vm(data)


def test_array_without_an_end_is_refused() -> None:
    names = BASE + 0x9000
    data = changed(0x9000, b"a\0" * 0x800)
    data = data[:8] + struct.pack("<Q", 8) + data[16:]  # entries that overlap
    endless = bytearray(data + struct.pack("<Q", names) * (1 << 15))
    endless[0:8] = struct.pack("<Q", BASE + len(data))
    for at in range(2, 7):
        endless[8 * at : 8 * at + 8] = bytes(8)
    with pytest.raises(FormatError, match="no end"):
        open_vm(bytes(endless))


@pytest.mark.parametrize("steps", [bytes(0x100), b"\x01" * 0x100, b"\xfe" * 0x100])
def test_segment_map_that_lies_gives_no_code(steps: bytes) -> None:
    vm = open_vm(changed(HEAP + 0x1800 - BASE, steps))
    assert vm.read_code(CODE) is None


def test_random_changes_cost_only_names() -> None:
    chance = random.Random(7)
    whole = image()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 12)):
            at = chance.choice((chance.randrange(len(data)), 0x8000 + chance.randrange(0x700)))
            data[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        exhaust(bytes(data))


def test_symbols_have_a_word_each() -> None:
    assert len(set(SYMBOLS)) == len(SYMBOLS)
    assert SYMBOL_TABLE + 8 * len(SYMBOLS) < BASE + 0x200
