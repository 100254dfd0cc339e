"""What an x86-64 instruction does to control flow, from its first bytes. Nothing else is decoded."""

from __future__ import annotations

PLAIN, CALL, RET, JUMP, SYSCALL = range(5)
"""JUMP: an indirect one. Direct and conditional jumps are PLAIN: they leave no frame behind."""

LONGEST = 15
_PREFIXES = frozenset({0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3, *range(0x40, 0x50)})


def classify(code: bytes) -> int:
    """code: LONGEST bytes at the pc, or what is readable of them."""
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
