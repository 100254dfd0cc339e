"""A classifier of x86-64 instructions by their effect on control flow. It decodes only the first bytes."""

from __future__ import annotations

PLAIN, CALL, RET, JUMP, SYSCALL = range(5)
"""Kinds of instructions.

JUMP is an indirect one; direct and conditional jumps are PLAIN because they leave no frame.
"""

LONGEST = 15
_PREFIXES = frozenset({0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3, *range(0x40, 0x50)})


def classify(code: bytes) -> int:
    """Return the kind of the instruction in these LONGEST bytes at the pc, or as many as are readable."""
    at = 0
    while at < len(code) and code[at] in _PREFIXES:
        at += 1
    opcode = code[at : at + 2]
    if not opcode:
        return PLAIN
    if opcode[0] == 0xE8:
        return CALL
    if opcode[0] in (0xC2, 0xC3):
        return RET
    if opcode == b"\x0f\x05":
        return SYSCALL
    if opcode[0] == 0xFF and len(opcode) == 2:
        extension = (opcode[1] >> 3) & 7
        if extension == 2:
            return CALL
        if extension == 4:
            return JUMP
    return PLAIN
