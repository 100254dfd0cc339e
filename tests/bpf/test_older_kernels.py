"""What the verifier of Linux 6.1 refuses and later ones take: whoever changes the program has one of those."""

from __future__ import annotations

import struct

import pytest

from pyprof.collectors.bpf.object import BpfObject
from pyprof.collectors.bpf.sampler import KINDS, OF_WAITS, program
from pyprof.collectors.linux.perf_arch import PERF_ARCHES

_INSTRUCTION = struct.Struct("<BBhi")
_EXIT, _GOTO, _CALL, _LD_IMM64 = 0x95, 0x05, 0x85, 0x18
_OF_FUNCTION, _FUNCTION = 1, 4
"""src_reg of a call of a function of the program's own, and of a load of one's address."""
_JUMPS = (5, 6)
"""Classes."""
Edge = tuple[int, bool]
"""An instruction that follows, and whether a jump leads there."""


def linked(machine: str, section: str) -> list[tuple[int, int, int, int]]:
    """(code, src_reg, offset, immediate) of each instruction of a program, as it is loaded."""
    loaded = BpfObject(program(machine), "sampler.o")
    loaded.maps = dict.fromkeys([*loaded.definitions, ".rodata"], 0)
    words = _INSTRUCTION.iter_unpack(loaded._linked(section))
    return [(code, registers >> 4, offset, immediate) for code, registers, offset, immediate in words]


def following(code: list[tuple[int, int, int, int]], at: int) -> list[Edge]:
    """As Linux 6.1 goes on (kernel/bpf/verifier.c: check_cfg)."""
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
    """Instructions from which one goes on, without a jump, at one that has led there."""
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


def test_loop_that_begins_anew_behind_an_instruction_that_is_no_jump_is_found() -> None:
    """Its first instruction, the third one here, asks whether to leave; its last one jumps to the one before that."""
    begin, leaves, back, end = (_GOTO, 0, 1, 0), (0x15, 0, 1, 0), (_GOTO, 0, -3, 0), (_EXIT, 0, 0, 0)
    assert fallen_back([begin, (0xB7, 0, 0, 1), leaves, back, end]) == [(1, 2)]
    assert fallen_back([begin, (_GOTO, 0, 0, 0), leaves, back, end]) == []
    assert fallen_back([begin, (_CALL, 0, 0, 5), leaves, back, end]) == [(1, 2)]
