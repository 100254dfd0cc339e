"""x86-64 instructions on a straight path to a return. unwind/heuristics/epilogue.py uses them.

Source: Intel SDM volume 2. Columns are those of arch_x86.X86_64, in DWARF order.
"""

from __future__ import annotations

COLUMNS = (0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15)
"""Column of each x86-64 register, by the register's number in an instruction."""

SP, FP = 4, 5
SCRATCH = frozenset({0, 1, 2, 6, 7, 8, 9, 10, 11})
"""Numbers of x86-64 registers that a function may change without saving them."""

MAX_STEPS = 32


def x86_64_epilogue(code: bytes) -> list[tuple[str, int]] | None:
    """Return the effects of x86-64 code on sp up to its return (see CallConvention.epilogue)."""
    steps: list[tuple[str, int]] = []
    at = 0
    for _ in range(MAX_STEPS):
        if code[at : at + 1] == b"\xc3" or code[at : at + 2] == b"\xf3\xc3":
            return steps
        size = _plain(code, at) or _stack(code, at, steps)
        if not size:
            return None
        at += size
    return None


def _stack(code: bytes, at: int, steps: list[tuple[str, int]]) -> int:
    """Return the size of an x86-64 instruction that moves sp, or 0. Add its effect to `steps`."""
    three, four = code[at : at + 3], code[at : at + 4]
    if three in (b"\x48\x83\xc4", b"\x48\x83\xec") and len(code) >= at + 4:  # add, sub $imm8,%rsp
        steps.append(("sp", _signed(code, at + 3, 1) * (1 if three[2] == 0xC4 else -1)))
        return 4
    if three in (b"\x48\x81\xc4", b"\x48\x81\xec") and len(code) >= at + 7:
        steps.append(("sp", _signed(code, at + 3, 4) * (1 if three[2] == 0xC4 else -1)))
        return 7
    if four == b"\x48\x8d\x64\x24" and len(code) >= at + 5:  # lea imm8(%rsp),%rsp
        steps.append(("sp", _signed(code, at + 4, 1)))
        return 5
    if four == b"\x48\x8d\xa4\x24" and len(code) >= at + 8:
        steps.append(("sp", _signed(code, at + 4, 4)))
        return 8
    if code[at : at + 1] == b"\xc9":  # leave
        steps += [("fp", 0), ("pop", COLUMNS[FP])]
        return 1
    if three in (b"\x48\x89\xec", b"\x48\x8b\xe5"):  # mov %rbp,%rsp
        steps.append(("fp", 0))
        return 3
    high = code[at : at + 1] == b"\x41"
    byte = code[at + high : at + high + 1]
    if byte and 0x50 <= byte[0] < 0x60:
        register = (byte[0] & 7) + 8 * high
        if register == SP:
            return 0
        steps.append(("pop" if byte[0] & 8 else "push", COLUMNS[register]))
        return 1 + high
    return 0


def _plain(code: bytes, at: int) -> int:
    """Return the size of an x86-64 instruction that changes neither sp nor registers of the caller, or 0."""
    for known in (b"\xf3\x0f\x1e\xfa", b"\xc5\xf8\x77", b"\x66\x90", b"\x90", b"\x0f\x1f\x00", b"\x0f\x1f\x40\x00"):
        if code.startswith(known, at):  # endbr64, vzeroupper, nops
            return len(known)
    if code[at : at + 1] == b"\xe8":  # call rel32; it returns with sp unchanged, unless it calls the next instruction
        return 5 if len(code) >= at + 5 and code[at + 1 : at + 5] != bytes(4) else 0
    high = code[at : at + 1] == b"\x41"
    if code[at + high : at + high + 1] == b"\xff" and len(code) > at + high + 1 and code[at + high + 1] & 0xF8 == 0xD0:
        return 2 + high  # call *%reg
    rex = code[at] if len(code) > at and code[at] & 0xF0 == 0x40 else 0
    first = at + bool(rex)
    if len(code) >= first + 2 and code[first] in (0x31, 0x89) and code[first + 1] >= 0xC0:  # xor, mov between registers
        target = (code[first + 1] & 7) + 8 * (rex & 1)
        return 2 + bool(rex) if target in SCRATCH else 0
    return 0


def _signed(code: bytes, at: int, size: int) -> int:
    return int.from_bytes(code[at : at + size], "little", signed=True)
