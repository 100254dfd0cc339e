"""Tests of rules of the Linux 6.1 verifier that later kernels relaxed, for developers who have a later kernel.

A guest with that kernel runs in tests/system (bpf_is_had_by_this_kernel).
"""

from __future__ import annotations

import struct

import pytest

from pyprof.collectors.bpf.bpf_object import BpfObject
from pyprof.collectors.bpf.kernel_program import KINDS, OF_WAITS, read_program
from pyprof.collectors.linux.sampled_arch import PERF_ARCHES

pytestmark = pytest.mark.system

_INSTRUCTION = struct.Struct("<BBhi")
_EXIT, _GOTO, _CALL, _LD_IMM64 = 0x95, 0x05, 0x85, 0x18
_OF_FUNCTION, _FUNCTION = 1, 4
"""Values of src_reg: a call of a BPF function (BPF_PSEUDO_CALL), and a load of its address (BPF_PSEUDO_FUNC)."""
_MOVE, _ADD, _FRAME = 0xBF, 0x07, 10
"""Opcodes of a register move and of an addition of a constant; number of the frame pointer register."""
_LOAD, _STORE, _STORE_REGISTER = 1, 2, 3
"""BPF instruction classes of loads and stores."""
MOST_STACK, ROUNDED = 512, 32
"""Maximum stack in bytes of a chain of calls, and the unit to which each function's stack is rounded up.

See check_max_stack_depth in kernel/bpf/verifier.c. Functions that a constant makes unreachable count, too.
"""
_JUMPS = (5, 6)
"""BPF instruction classes of jumps."""
Edge = tuple[int, bool]
"""The index of a following instruction, and whether a jump leads there."""


def instructions(machine: str, section: str) -> list[tuple[int, int, int, int]]:
    """Return (code, registers, offset, immediate) of each instruction of a program as it is loaded."""
    loaded = BpfObject(read_program(machine), "sampler.o")
    loaded.maps = dict.fromkeys([*loaded.definitions, ".rodata"], 0)
    return [*_INSTRUCTION.iter_unpack(loaded._linked(section))]


def linked(machine: str, section: str) -> list[tuple[int, int, int, int]]:
    """Return (code, src_reg, offset, immediate) of each instruction of a program."""
    words = instructions(machine, section)
    return [(code, registers >> 4, offset, immediate) for code, registers, offset, immediate in words]


def called(code: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """Map each instruction that calls a BPF function, or passes one to a helper, to the function's start."""
    kinds = {(_CALL, _OF_FUNCTION), (_LD_IMM64, _FUNCTION)}
    return {
        at: at + immediate + 1
        for at, (operation, registers, _, immediate) in enumerate(code)
        if (operation, registers >> 4) in kinds
    }


def stack_of(code: list[tuple[int, int, int, int]]) -> int:
    """Return the stack use of a function in bytes, through the frame pointer or a copy of it."""
    most, copies = 0, set[int]()
    for operation, registers, offset, immediate in code:
        target, source = registers & 15, registers >> 4
        kind, adds = operation & 7, operation == _ADD and target in copies
        base = source if kind == _LOAD else target if kind in (_STORE, _STORE_REGISTER) else -1
        most = max(most, -offset if base == _FRAME else -immediate if adds else 0)
        if operation == _MOVE and source == _FRAME:
            copies.add(target)
        elif kind not in (_STORE, _STORE_REGISTER, *_JUMPS):
            copies.discard(target)
    return most


def deepest(code: list[tuple[int, int, int, int]]) -> int:
    """Return the largest stack use in bytes of a chain of calls."""
    calls = called(code)
    begins = sorted({0, *calls.values()})
    ends = dict(zip(begins, [*begins[1:], len(code)], strict=True))

    def below(begin: int) -> int:
        end = ends[begin]
        own = -(-max(stack_of(code[begin:end]), 1) // ROUNDED) * ROUNDED
        return own + max((below(to) for at, to in calls.items() if begin <= at < end), default=0)

    return below(0)


def following(code: list[tuple[int, int, int, int]], at: int) -> list[Edge]:
    """Return the edges of an instruction in the order in which Linux 6.1 explores them (check_cfg in
    kernel/bpf/verifier.c).
    """
    operation, source, offset, immediate = code[at]
    if operation == _EXIT:
        return []
    if operation == _GOTO:
        return [(at + offset + 1, True)]
    if operation == _CALL:
        return [(at + 1, False), *([(at + immediate + 1, False)] if source == _OF_FUNCTION else [])]
    if operation == _LD_IMM64:
        return [(at + 2, False), *([(at + immediate + 1, True)] if source == _FUNCTION else [])]
    return [(at + 1, operation & 7 in _JUMPS), *([(at + offset + 1, True)] if operation & 7 in _JUMPS else [])]


def fallen_back(code: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    """Return the (from, to) back edges of the control flow graph that are not jumps."""
    open_, seen, found = {0}, {0}, []
    path = [(0, iter(following(code, 0)))]
    while path:
        at, edges = path[-1]
        for target, jumps in edges:
            if target in open_ and not jumps:
                found.append((at, target))
            if target not in seen:
                seen.add(target)
                open_.add(target)
                path.append((target, iter(following(code, target))))
                break
        else:
            open_.remove(at)
            path.pop()
    return found


@pytest.mark.parametrize("machine", PERF_ARCHES)
@pytest.mark.parametrize("section", [*KINDS, *OF_WAITS])
def test_no_loop_begins_anew_but_by_a_jump(machine: str, section: str) -> None:
    code = linked(machine, section)
    assert len(code) > 20
    assert fallen_back(code) == []


@pytest.mark.parametrize("machine", PERF_ARCHES)
@pytest.mark.parametrize("section", [*KINDS, *OF_WAITS])
def test_functions_in_a_row_have_enough_stack(machine: str, section: str) -> None:
    code = instructions(machine, section)
    assert ROUNDED <= deepest(code) <= MOST_STACK


def test_stack_of_functions_in_a_row_is_their_sum() -> None:
    """Check a function of 40 bytes that passes another one, which writes at an address of its frame, to a helper."""
    use, end = (0x7B, _FRAME, -40, 0), (_EXIT, 0, 0, 0)
    give = (_LD_IMM64, _FUNCTION << 4 | 2, 0, 3), (0, 0, 0, 0)
    address = (_MOVE, _FRAME << 4 | 1, 0, 0), (_ADD, 1, 0, -8)
    assert deepest([use, *give, end, end, *address, end]) == 64 + ROUNDED
    assert deepest([use, end]) == 64


def test_loop_that_begins_anew_behind_an_instruction_that_is_no_jump_is_found() -> None:
    """Check a loop whose first instruction tests the exit condition and whose last one jumps to the instruction before
    it.
    """
    begin, leaves, back, end = (_GOTO, 0, 1, 0), (0x15, 0, 1, 0), (_GOTO, 0, -3, 0), (_EXIT, 0, 0, 0)
    assert fallen_back([begin, (0xB7, 0, 0, 1), leaves, back, end]) == [(1, 2)]
    assert fallen_back([begin, (_GOTO, 0, 0, 0), leaves, back, end]) == []
    assert fallen_back([begin, (_CALL, 0, 0, 5), leaves, back, end]) == [(1, 2)]
