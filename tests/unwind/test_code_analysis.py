"""Tests of the unwind rules that the code of a function proves."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import X86_64
from pyprof.model.walk import StackEnd, Trust
from pyprof.objfile.formats import open_object_file
from pyprof.options import UnwindOptions
from pyprof.unwind.code_analysis.code_rules import CodeRules, keep_proved, make_rule
from pyprof.unwind.code_analysis.x86_flow import LOST, Code, FunctionStates, analyse
from pyprof.unwind.module_sources import open_sources
from pyprof.unwind.rules import UNDEFINED, FunctionRows, Rule
from tests.support import PROGRAMS, build, need
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
            lambda at, size: b"",
            lambda at: at == entry,
            is_start,
            is_start,
            lambda slot: slot == NO_RETURN_SLOT,
        ),
        start,
    )


def depths(code: bytes) -> dict[int, int | None]:
    """Return the distance from rsp to the CFA at the start of each range of equal instructions."""
    states = states_of(code)
    assert states is not None
    return {start - START: states.ranges[start].state.sp for start in states.starts}


def test_depth_follows_pushes_and_pops() -> None:
    # push %rbx; sub $16,%rsp; call +0; nop; add $16,%rsp; pop %rbx; ret
    code = bytes.fromhex("53 4883ec10 e80b000000 90 4883c410 5b c3") + bytes(16)
    assert depths(code) == {0: -8, 1: -16, 5: -32, 10: -32, 11: -32, 15: -16, 16: -8}


def test_saved_register_is_found_while_its_slot_is_in_the_frame() -> None:
    states = states_of(bytes.fromhex("55 4889e5 5d c3"))
    assert states is not None
    rules = [make_rule(states.ranges[start].state, X86_64) for start in states.starts]
    assert [dict(rule.regs).get(X86_64.fp) is not None for rule in rules] == [False, True, True, False]


def test_aligned_frame_has_the_frame_pointer_as_base() -> None:
    states = states_of(bytes.fromhex("55 4889e5 4883e4f0 90 c9 c3"))  # push; mov; and $-16,%rsp; nop; leave; ret
    assert states is not None
    rule = make_rule(states.ranges[START + 8].state, X86_64)
    assert (rule.cfa_reg, rule.cfa_off) == (X86_64.fp, 16)


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
    assert {start - START: states.ranges[start].state.sp for start in states.starts} == proved, name


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
    assert make_rule(states.ranges[START + 2].state, X86_64).ra is UNDEFINED
    other = states_of(code)
    assert other is not None
    assert other.ranges[START + 2].state.saved[1] == LOST


def test_unnamed_start_gives_no_rule_where_code_leaves_it_for_its_own_function() -> None:
    # nop; 1: jmp to the byte before: a loop of a larger function, and not a tail call
    code = bytes.fromhex("90 ebfd c3")
    assert states_of(code, START + 1) is not None
    assert states_of(code, START + 1, sure=False) is None


@given(st.binary(min_size=1, max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_states_within_them_or_none(code: bytes) -> None:
    states = states_of(code)
    if states is not None:
        for start in states.starts:
            assert START <= start < states.ranges[start].end <= START + len(code)


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "hidden", "share"),
    [
        ("libc.so.6", False, 0.97),
        ("libgmp.so.10", False, 0.97),
        ("libcrypto.so.3", False, 0.9),
        ("libc.so.6", True, 0.95),
        ("libgmp.so.10", True, 0.97),
        ("libcrypto.so.3", True, 0.9),
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
