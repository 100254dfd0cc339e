"""Tests of STACK WIN on synthetic x86 stacks: each form of program, FPO records, and frames that cannot be unwound."""

from __future__ import annotations

import pytest

from pyprof.objfile.breakpad_records import WinRecord
from pyprof.unwind.formats.breakpad_postfix_expressions import PostfixFailed, PostfixProblem
from pyprof.unwind.formats.breakpad_stack_win import INNERMOST, Callee, find_parameter_size, find_win_caller
from tests.breakpad.support import symbol_file

pytestmark = pytest.mark.system

STACK = 0x8000
RETURN = 0x40_1234


class Stack:
    """Memory that contains these words from address STACK."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def read(self, avma: int, size: int) -> int | None:
        assert size == 4
        at, odd = divmod(avma - STACK, 4)
        return self.words[at] if not odd and 0 <= at < len(self.words) else None


def record(program: str = "", saved: int = 0, local: int = 0, parameters: int = 0, flag: int = 0) -> WinRecord:
    """Return a STACK WIN record parsed from the text of a symbol file."""
    kind, has, last = (4, 1, program) if program else (0, 0, str(flag))
    file = symbol_file(f"STACK WIN {kind} 1000 40 3 1 {parameters:x} {saved:x} {local:x} 0 {has} {last}\n")
    found = file.win_at(0x1010)
    assert found is not None
    return found


def registers(esp: int = STACK, **others: int) -> dict[str, int]:
    return {"esp": esp, "ebp": 0x9000, "eip": 0x40_1010} | others


CLASSIC = "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + ="
SEARCH = "$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + ="
SAVED = "$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + = $ebp $T0 12 - ^ = $ebx $T0 8 - ^ = $esi $T0 4 - ^ ="


def test_frame_with_ebp() -> None:
    stack = Stack(0, 0, 0xA000, RETURN)
    found = find_win_caller(record(CLASSIC), registers(ebp=STACK + 8), INNERMOST, stack.read)
    assert found == {"eip": RETURN, "ebp": 0xA000, "esp": STACK + 16}


def test_return_address_is_searched_above_locals_registers_and_arguments() -> None:
    stack = Stack(*[7] * 3, *[8] * 2, *[9] * 4, RETURN)
    found = find_win_caller(record(SEARCH, saved=8, local=16), registers(), Callee(parameters=12), stack.read)
    assert found == {"eip": RETURN, "esp": STACK + 40}


def test_saved_registers_are_read_and_others_are_lost() -> None:
    stack = Stack(1, 0xB0, 0xB1, 0xB2, RETURN)
    found = find_win_caller(record(SAVED, saved=12, local=4), registers(edi=5), INNERMOST, stack.read)
    assert found == {"eip": RETURN, "esp": STACK + 20, "ebp": 0xB0, "ebx": 0xB1, "esi": 0xB2}


def test_registers_are_left_alone_where_the_program_tells_all_that_were_saved() -> None:
    stack = Stack(0xE0, 0xE1, RETURN)
    program = "$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + = $edi $T0 4 - ^ = $esi $T0 8 - ^ ="
    found = find_win_caller(record(program, saved=8), registers(ebx=0xBB, esi=1, edi=2), INNERMOST, stack.read)
    assert found == {"eip": RETURN, "esp": STACK + 12, "esi": 0xE0, "edi": 0xE1, "ebx": 0xBB, "ebp": 0x9000}
    found = find_win_caller(record(program, saved=12), registers(ebx=0xBB), INNERMOST, Stack(0, *stack.words).read)
    assert found.keys() == {"eip", "esp", "esi", "edi"}


def test_program_that_aligns_esp_finds_the_return_address_by_ebp() -> None:
    program = "$T1 .raSearch = $T0 $T1 4 - 8 @ = $ebp $T1 4 - ^ = $eip $T1 ^ = $esp $T1 4 + ="
    stack = Stack(0, 0, 0, 0, 0xA000, RETURN)
    found = find_win_caller(record(program, local=4), registers(ebp=STACK + 16), INNERMOST, stack.read)
    assert found == {"eip": RETURN, "ebp": 0xA000, "esp": STACK + 24}


def test_sizes_have_names_in_programs() -> None:
    program = "$eip $esp .cbLocals + .cbSavedRegs + .cbCalleeParams + ^ = $esp .raSearchStart .cbParams + 4 + ="
    stack = Stack(0, 0, 0, RETURN)
    found = find_win_caller(
        record(program, saved=4, local=4, parameters=0x10), registers(), Callee(parameters=4), stack.read
    )
    assert found == {"eip": RETURN, "esp": STACK + 12 + 16 + 4}


def test_fpo_with_a_base_pointer_reads_the_saved_ebp() -> None:
    """Read ebp at esp + parameters of the callee + saved registers - 8."""
    stack = Stack(0xC0, 0xB0, 0xB1, 0xB2, 0xB3, RETURN)
    found = find_win_caller(record(saved=12, local=4, flag=1), registers(), Callee(parameters=4), stack.read)
    assert found == {"eip": RETURN, "esp": STACK + 24, "ebp": 0xB1}


def test_fpo_without_a_base_pointer_keeps_ebp_and_ebx() -> None:
    stack = Stack(0, RETURN)
    found = find_win_caller(record(local=4), registers(ebx=0xBB), INNERMOST, stack.read)
    assert found == {"eip": RETURN, "esp": STACK + 8, "ebp": 0x9000, "ebx": 0xBB}


def test_return_address_of_a_system_call_is_skipped_in_the_leaf_frame_only() -> None:
    stack = Stack(0x40_1010, RETURN)
    assert find_win_caller(record(), registers(), INNERMOST, stack.read)["eip"] == RETURN
    assert find_win_caller(record(), registers(), INNERMOST, stack.read)["esp"] == STACK + 8
    assert find_win_caller(record(), registers(), Callee(), stack.read)["eip"] == 0x40_1010


def test_addresses_wrap_at_32_bits() -> None:
    found = find_win_caller(
        record("$eip 1 = $esp .raSearch 8 + ="), registers(esp=0xFFFF_FFFC), INNERMOST, Stack().read
    )
    assert found["esp"] == 4


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("$eip 4 + ^ = $esp $ebp 8 + = $ebp $ebp ^ =", PostfixProblem.MISSING_OPERAND),  # example in the specification
        ("$esp .raSearch 4 + =", PostfixProblem.UNKNOWN_NAME),
        ("$eip .raSearch ^ =", PostfixProblem.UNKNOWN_NAME),
        ("$eip .raSearch ^ = $esp 4 = $ebp", PostfixProblem.LEFT_OVER),
        ("$eip 0 ^ = $esp 4 =", PostfixProblem.UNREADABLE),
    ],
)
def test_program_that_cannot_be_evaluated_fails(program: str, problem: PostfixProblem) -> None:
    with pytest.raises(PostfixFailed) as failed:
        find_win_caller(record(program), registers(eip=STACK - 4), INNERMOST, Stack(RETURN).read)
    assert failed.value.problem == problem


def test_parameters_are_those_of_stack_win_before_those_of_the_function() -> None:
    file = symbol_file("FUNC 10 10 4 f\nPUBLIC 40 c p\nSTACK WIN 4 18 4 0 0 8 0 0 0 1 $eip 0 =\n")
    assert [find_parameter_size(file, at) for at in (0x10, 0x18, 0x41, 0x8)] == [4, 8, 12, 0]


def test_stack_that_is_not_there_fails() -> None:
    with pytest.raises(PostfixFailed, match="unreadable"):
        find_win_caller(record(local=0x100), registers(), INNERMOST, Stack(RETURN).read)
    with pytest.raises(PostfixFailed, match="unknown name"):
        find_win_caller(record(), {"ebp": 4}, INNERMOST, Stack(RETURN).read)
