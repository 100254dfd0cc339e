"""Tests of the unwind rules that the code of a function proves."""

from __future__ import annotations

import struct
import time
import tracemalloc
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.code_analysis.cfa_and_register_state import LOST, make_row
from pyprof.unwind.code_analysis.code_rules import CodeRules, keep_proved, make_rule
from pyprof.unwind.code_analysis.function_index import FunctionIndex
from pyprof.unwind.code_analysis.instruction_states import Code, FunctionStates
from pyprof.unwind.code_analysis.x86_control_flow import analyse
from pyprof.unwind.module_unwind_sources import open_sources
from pyprof.unwind.native_unwinder import find_library
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from tests.support import PROGRAMS, build, missing, need
from tests.unwind.hostile_code import compare_file, compare_made
from tests.unwind.made_stacks import little_elf
from tests.unwind.test_unwinder import process, stacks

START = 0x1000
NO_RETURN_SLOT = 0x100


def states_of(code: bytes, start: int = START, entry: int = 0, sure: bool = True) -> FunctionStates | None:
    data = memoryview(code)
    end = START + len(code)

    def is_start(at: int) -> bool:
        return sure and at == start

    return analyse(
        Code(
            data,
            START,
            lambda at: end,
            lambda at, size: code[at - START : at - START + size] if at >= START else b"",
            lambda at: at == entry,
            is_start,
            is_start,
            lambda slot: slot == NO_RETURN_SLOT,
        ),
        start,
    )


def depths(code: bytes) -> dict[int, int | None]:
    """Return the distance from rsp to the CFA at each instruction."""
    states = states_of(code)
    assert states is not None
    return sp_of(states)


def sp_of(states: FunctionStates) -> dict[int, int | None]:
    return {start - START: states.known[start].state.sp for start in sorted(states.known)}


def rule_at(code: str, offset: int) -> Rule:
    """Return the rule at an offset of a function."""
    states = states_of(bytes.fromhex(code))
    assert states is not None
    return make_rule(make_row(states.known[START + offset].state), X86_64)


def test_depth_follows_pushes_and_pops() -> None:
    # push %rbx; sub $16,%rsp; call +0; nop; add $16,%rsp; pop %rbx; ret
    code = bytes.fromhex("53 4883ec10 e80b000000 90 4883c410 5b c3") + bytes(16)
    assert depths(code) == {0: -8, 1: -16, 5: -32, 10: -32, 11: -32, 15: -16, 16: -8}


def test_saved_register_is_found_while_its_slot_is_in_the_frame() -> None:
    rules = [rule_at("55 4889e5 5d c3", offset) for offset in (0, 1, 4, 5)]
    assert [dict(rule.regs).get(X86_64.fp) is not None for rule in rules] == [False, True, True, False]


def test_aligned_frame_has_the_frame_pointer_as_base() -> None:
    rule = rule_at("55 4889e5 4883e4f0 90 c9 c3", 8)  # push; mov; and $-16,%rsp; nop; leave; ret
    assert (rule.cfa_reg, rule.cfa_off) == (X86_64.fp, 16)


def test_aligned_frame_without_frame_pointer_has_the_word_that_keeps_rsp_as_base() -> None:
    # mov %rsp,%rax; push %rbx; sub $64,%rsp; and $-64,%rsp; mov %rax,24(%rsp); nop; mov 24(%rsp),%rsi;
    # mov -8(%rsi),%rbx; lea (%rsi),%rsp; ret
    code = "4889e0 53 4883ec40 4883e4c0 4889442418 90 488b742418 488b5ef8 488d26 c3"
    kept = rule_at(code, 17)
    assert kept.cfa_expr == bytes.fromhex("77 18 06 11 08 22")  # breg7 24; deref; consts 8; plus
    assert dict(kept.regs)[3] == RegRule(RegKind.AT_CFA, -16)
    copied, restored, last = (rule_at(code, offset) for offset in (12, 27, 30))
    assert (copied.cfa_reg, copied.cfa_off) == (0, 8)
    assert (restored.cfa_expr, restored.regs) == (kept.cfa_expr, ())
    assert (last.cfa_reg, last.cfa_off, last.regs) == (X86_64.sp, 8, ())


def test_word_that_keeps_rsp_at_an_index_holds_until_the_index_changes() -> None:
    # mov %rsp,%rax; and $-64,%rsp; mov %rax,8(%rsp,%r9,8); xor %eax,%eax; mov 8(%rsp,%r9,8),%rsi; lea (%rsi),%rsp; ret
    code = "4889e0 4883e4c0 4a8944cc08 31c0 4a8b74cc08 488d26 c3"
    assert rule_at(code, 14).cfa_expr == bytes.fromhex("77 08 79 00 33 24 22 06 11 08 22")
    states = states_of(bytes.fromhex(code.replace("31c0", "31c0 4531c9")))  # xor %r9d,%r9d
    assert states is not None
    assert START + 17 not in states.known


def test_registers_saved_in_a_realigned_frame_are_found_by_the_frame_pointer() -> None:
    # lea 8(%rsp),%r10; and $-32,%rsp; push -8(%r10); push %rbp; mov %rsp,%rbp; push %r12; push %r10; nop;
    # pop %r10; pop %r12; pop %rbp; lea -8(%r10),%rsp; ret
    code = "4c8d542408 4883e4e0 41ff72f8 55 4889e5 4154 4152 90 415a 415c 5d 498d62f8 c3"
    rule = rule_at(code, 21)
    assert rule.cfa_expr == bytes.fromhex("76 70 06")  # breg6 -16; deref
    assert dict(rule.regs) == {6: RegRule(RegKind.AT_REG, 0, 6), 12: RegRule(RegKind.AT_REG, -8, 6)}
    assert (rule_at(code, 31).cfa_reg, rule_at(code, 31).cfa_off) == (X86_64.sp, 8)


def test_call_overwrites_copies_of_rsp_in_registers() -> None:
    # mov %rsp,%rax; mov %rsp,%rbx; and $-64,%rsp; call; mov %rbx,%rsp; ret
    rule = rule_at("4889e0 4889e3 4883e4c0 e800100000 4889dc c3", 15)
    assert (rule.cfa_reg, rule.cfa_off) == (3, 8)
    states = states_of(bytes.fromhex("4889e0 4883e4c0 e800100000 4889c4 c3"))
    assert states is not None
    assert START + 12 not in states.known


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("two depths at one instruction", "85ff 7401 53 90 c3"),  # test; je over push; push %rbx; nop; ret
        ("a return at a wrong depth", "53 c3"),
        ("the return address is popped", "58 ffe0"),
        ("a jump into an instruction", "85ff 7401 b853909090 c3"),
        ("an invalid instruction", "90 06 c3"),
    ],
)
def test_contradiction_gives_no_rule(name: str, code: str) -> None:
    assert states_of(bytes.fromhex(code)) is None, name


@pytest.mark.parametrize(
    ("name", "code", "proved"),
    [
        # push %rbx; call; ud2
        ("code that leads nowhere", "53 e800100000 0f0b", {0: -8, 1: -16}),
        # push %rbx; call; pop %rbx; ret
        ("code that returns", "53 e800100000 5b c3", {0: -8, 1: -16, 6: -16, 7: -8}),
        # push %rbx; 1: call; jmp 1b
        ("code that leads to the same depth", "53 e800100000 ebf9", {0: -8, 1: -16, 6: -16}),
        # push %rbp; mov %rsp,%rbp; call; leave; ret
        ("code that takes rsp from rbp", "55 4889e5 e800100000 c9 c3", {0: -8, 1: -16, 4: -16, 9: None, 10: -8}),
        # push %rbx; call *0x100: abort; pop %rbx; ret
        ("the called function never returns", "53 ff15f9f0ffff 5b c3", {0: -8, 1: -16}),
        # push %rbx; call of a PLT entry of abort; pop %rbx; ret; nop; jmp *0x100
        ("the PLT entry leads to no return", "53 e803000000 5b c3 90 ff25f1f0ffff", {0: -8, 1: -16}),
    ],
)
def test_state_behind_a_call_is_kept_if_what_follows_proves_it(
    name: str, code: str, proved: dict[int, int | None]
) -> None:
    states = states_of(bytes.fromhex(code))
    assert states is not None
    keep_proved(states, lambda call: False)
    assert sp_of(states) == proved, name


def test_code_behind_a_call_of_a_function_that_returns_is_kept() -> None:
    states = states_of(bytes.fromhex("53 e800100000 0f0b"))  # push %rbx; call; ud2
    assert states is not None
    keep_proved(states, lambda call: call == START + 1)
    assert states.find(START + 6) is not None


def test_first_call_at_an_odd_depth_refutes_an_unnamed_start() -> None:
    code = bytes.fromhex("e800100000 c3")  # call; ret, as a landing pad may begin
    assert states_of(code) is not None
    assert states_of(code, sure=False) is None


def test_call_that_does_not_return_is_found_by_the_code_behind_it() -> None:
    # test; je 1f; push %rax; call abort; 1: ret -- the depth at 1 is that of the jump
    code = bytes.fromhex("85ff 7406 50 e800100000 c3")
    assert depths(code)[10] == -8


def test_code_behind_a_jump_without_a_table_has_the_depth_that_its_return_proves() -> None:
    # push %rbx; jmp *%rax; pop %rbx; ret
    assert depths(bytes.fromhex("53 ffe0 5b c3"))[3] == -16
    # push %rbx; jmp *%rax; pop %rbx; pop %rcx; ret
    assert 3 not in depths(bytes.fromhex("53 ffe0 5b 59 c3"))


def test_entry_that_clears_the_frame_pointer_is_outermost() -> None:
    code = bytes.fromhex("31ed 4889e7 e800100000 f4")
    states = states_of(code, entry=START)
    assert states is not None
    assert make_row(states.known[START + 2].state).outermost
    other = states_of(code)
    assert other is not None
    assert other.known[START + 2].state.saved[1] == LOST


def test_unnamed_start_gives_no_rule_where_code_leaves_it_for_its_own_function() -> None:
    # nop; 1: jmp to the byte before: a loop of a larger function, and not a tail call
    code = bytes.fromhex("90 ebfd c3")
    assert states_of(code, START + 1) is not None
    assert states_of(code, START + 1, sure=False) is None


@pytest.mark.parametrize(
    ("name", "before", "certain"),
    [
        ("ret", "c3", True),
        ("call *%rax", "ffd0", True),
        ("a part of call *0x48(%rax)", "ff50", False),
        ("ud2", "0f0b", True),
        ("a part of a jump", "e90b", False),
    ],
)
def test_called_aligned_address_is_certain_only_behind_the_end_of_code(name: str, before: str, certain: bool) -> None:
    end = bytes.fromhex(before)
    code = bytes.fromhex("e81b000000") + b"\x53" * (27 - len(end)) + end + b"\x53" * 32  # call of the address 32
    index = FunctionIndex(little_elf(X86_64, code), None, [])
    assert index.is_certain(32) == certain, name


def test_memory_for_large_code_is_small_and_freed(tmp_path: Path) -> None:
    size = 8 << 20
    code = bytes.fromhex("4883ec08 e8f7000000 4883c408 c3").ljust(256, b"\xcc") * (size // 256)
    path = tmp_path / "large"
    path.write_bytes(little_elf(X86_64, code).read(0, 2 * size))
    file = open_object_file(str(path))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        rules = CodeRules(file, None, X86_64, [])
        kept, most = tracemalloc.get_traced_memory()
        assert kept - before < size // 4
        assert most - before < 3 * size
        assert rules.piece_at(256 + 9) is not None
        rules.drop_idle_code(time.monotonic() + 60)
        assert tracemalloc.get_traced_memory()[0] - kept < size // 4
        assert rules.piece_at(512 + 9) is not None
    finally:
        tracemalloc.stop()


@given(st.binary(min_size=1, max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_states_within_them_or_none(code: bytes) -> None:
    states = states_of(code)
    if states is not None:
        for start, found in states.known.items():
            assert START <= start < start + found.size <= START + len(code)


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "hidden", "share"),
    [
        ("libc.so.6", False, 0.97),
        ("libgmp.so.10", False, 0.97),
        ("libcrypto.so.3", False, 0.97),
        ("libc.so.6", True, 0.95),
        ("libgmp.so.10", True, 0.97),
        ("libcrypto.so.3", True, 0.96),
        ("libstdc++.so.6", True, 0.85),
    ],
)
def test_rules_from_code_equal_those_of_eh_frame(name: str, hidden: bool, share: float) -> None:
    """Compare rows. If the tables are hidden, the analysis does not know the functions, and parts count, too."""
    found = [path for path in (Path("/lib/x86_64-linux-gnu") / name, Path("/usr/lib64") / name) if path.exists()]
    if not found:
        need(name)
    file = open_object_file(str(found[0]))
    (table,) = open_sources(file, X86_64, ("eh_frame",), Diagnostics())
    rules = CodeRules(file, None, X86_64, [] if hidden else [table.extents()])
    text = file.sections[".text"]
    functions = [f for f in table.functions() if text.addr <= f.start < text.addr + text.size]
    functions = [f for f in functions if begins_plainly(f) or (hidden and not is_entry(f.rules[0]))]
    rows = given_rows = 0
    wrong = []
    for function in functions[:: max(len(functions) // 600, 1)]:
        for start, rule in zip(function.starts, function.rules, strict=True):
            rows += 1
            piece = rules.piece_at(start)
            if piece is None or (piece.function != function.start and not hidden):
                continue
            ours = piece.rows.rules[bisect_right(piece.rows.starts, start) - 1]
            if ours.ra is UNDEFINED or rule.ra is UNDEFINED:
                continue
            given_rows += 1
            if ours.cfa_reg == rule.cfa_reg and ours.cfa_off != rule.cfa_off:
                wrong.append((hex(function.start), hex(start), ours.cfa_off, rule.cfa_off))
    assert wrong == []
    assert given_rows > share * rows > 1000


def test_native_analysis_gives_the_rules_of_the_analysis_in_python() -> None:
    library = find_library()
    if library is None:
        missing("needs the native code of this machine")
    assert library is not None
    given = [compare_made(library, seed) for seed in range(40)]
    assert sum(given) > 40
    libc = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if libc.exists():
        assert compare_file(library, libc, 30011) > 20


def test_number_of_entries_of_a_jump_table_is_that_of_the_comparison_before() -> None:
    # cmp $1,%eax; mov %rax,%rdx; ja 1f; lea 3f(%rip),%rcx; movslq (%rcx,%rdx,4),%rdx; add %rcx,%rdx; jmp *%rdx;
    # 1: ret; nop; ret; 3: the table, and then the offset of the middle of an instruction
    code = bytes.fromhex("83f801 4889c2 7710 488d0d0d000000 48631491 4801ca ffe2 c3 90 c3 00")
    states = states_of(code + struct.pack("<iii", -4, -3, -12))
    assert states is not None
    assert states.unresolved == []
    assert {START + 24, START + 25, START + 26} <= set(states.known)


def test_indirect_jump_at_the_depth_of_the_entry_is_a_tail_call_unless_it_adds() -> None:
    # sub $8,%rsp; cmp $1,%edi; ja 1f; 1: lea 3f(%rip),%rcx; add $8,%rsp; jmp *%rax; 3: the offsets of 1
    code = bytes.fromhex("4883ec08 83ff01 7700 488d0d08000000 4883c408 ffe0 9090")
    states = states_of(code + struct.pack("<ii", -15, -15))
    assert states is not None
    assert (states.returns, len(states.unresolved)) == (1, 1)


def is_entry(rule: Rule) -> bool:
    return (rule.cfa_reg, rule.cfa_off) == (X86_64.sp, 8) and not rule.signal


def begins_plainly(function: FunctionRows) -> bool:
    """Return True for a table entry that is a whole function, and for whose code the compiler wrote rows."""
    return len(function.rules) > 1 and is_entry(function.rules[0])


NO_TABLES = ("-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")


@pytest.mark.system
@pytest.mark.parametrize("compiler", ["gcc", "musl-gcc"])
def test_sleeping_thread_of_a_stripped_program_without_tables_is_whole(tmp_path: Path, compiler: str) -> None:
    program = build(PROGRAMS / "sigreturn_bare.c", tmp_path / "bare", *NO_TABLES, "-s", compiler=need(compiler))
    with process(program) as pid:
        (stack,) = stacks(pid, Diagnostics()).values()
        (cut,) = stacks(pid, Diagnostics(), UnwindOptions(sources=("eh_frame", "fp"))).values()
    assert (stack.end, cut.end) == (StackEnd.ROOT, StackEnd.NO_RULE)
    assert Trust.CODE in {trust for _, trust in stack.frames}
