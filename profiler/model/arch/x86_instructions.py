"""x86 instructions: their length, and frames and calls of code that is compiled with frame pointers.

Source: Intel SDM volume 2, appendix A (opcode maps) and chapter 2 (prefixes, ModRM, SIB, VEX, EVEX).

Functions begin with `push %rbp; mov %rsp,%rbp`, save registers by pushes and allocate space with `sub $n,%rsp`. A
compiler may put other instructions in between. Source: prologues in the output of gcc and clang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyprof.model.arch.definition import Depth, FrameCode

LONGEST = 15
_PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3))


def _set(*ranges: int | tuple[int, int]) -> frozenset[int]:
    return frozenset(n for r in ranges for n in (range(r[0], r[1] + 1) if isinstance(r, tuple) else (r,)))


_ALU = [base + n for base in range(0, 0x40, 8) for n in range(4)]
_MODRM = _set(*_ALU, 0x63, 0x69, 0x6B, (0x80, 0x8F), 0xC0, 0xC1, 0xC6, 0xC7, (0xD0, 0xD3), (0xD8, 0xDF), 0xF6, 0xF7,
              0xFE, 0xFF)  # fmt: skip
_IMM8 = _set(*(base + 4 for base in range(0, 0x40, 8)), 0x6A, 0x6B, (0x70, 0x7F), 0x80, 0x83, 0xA8, (0xB0, 0xB7), 0xC0,
             0xC1, 0xC6, 0xCD, (0xE0, 0xE7), 0xEB)  # fmt: skip
_IMM32 = _set(*(base + 5 for base in range(0, 0x40, 8)), 0x68, 0x69, 0x81, 0xA9, (0xB8, 0xBF), 0xC7, 0xE8, 0xE9)
_NONE = _set((0x50, 0x5F), (0x90, 0x99), (0x9B, 0x9F), (0xA4, 0xA7), (0xAA, 0xAF), 0xC3, 0xC9, 0xCC, (0xEC, 0xEF),
             (0xF4, 0xF5), (0xF8, 0xFD))  # fmt: skip

_TWO_NONE = _set(0x05, 0x0B, 0x31, 0x34, 0x77, 0xA0, 0xA1, 0xA2, 0xA8, 0xA9, (0xC8, 0xCF))
_TWO_IMM8 = _set((0x70, 0x73), 0xA4, 0xAC, 0xBA, 0xC2, (0xC4, 0xC6))


def instruction_length(code: bytes, at: int, wide: bool) -> int:
    """Return the number of bytes of the x86 instruction at code[at], or 0 if it is invalid, incomplete or unknown.

    Args:
        code: The code.
        at: Offset of the instruction.
        wide: True for 64-bit code.
    """
    try:
        size = _length(code, at, wide)
    except IndexError:
        return 0
    return size if 0 < size <= LONGEST and at + size <= len(code) else 0


def _length(code: bytes, at: int, wide: bool) -> int:
    start = at
    short = False
    while code[at] in _PREFIXES:
        short |= code[at] == 0x66
        at += 1
    big = False
    if wide and code[at] & 0xF0 == 0x40:
        big = bool(code[at] & 8)
        short &= not big
        at += 1
    opcode = code[at]
    if opcode in (0xC4, 0xC5, 0x62) and (wide or code[at + 1] >= 0xC0):
        return _vector(code, at, wide) - start
    if opcode == 0x0F:
        return _two_bytes(code, at + 1, wide) - start
    at += 1
    if not wide and 0x40 <= opcode < 0x50:  # inc, dec
        return at - start
    if opcode in _MODRM:
        reg = (code[at] >> 3) & 7
        at = _modrm(code, at, wide)
        if opcode in (0xF6, 0xF7) and reg < 2:  # test
            return at + (1 if opcode == 0xF6 else 2 if short else 4) - start
    elif opcode in (0xC2, 0xCA):
        return at + 2 - start
    elif 0xA0 <= opcode < 0xA4:
        return at + (8 if wide else 4) - start
    elif opcode not in _IMM8 and opcode not in _IMM32 and opcode not in _NONE:
        return 0
    if opcode in _IMM8:
        at += 1
    elif opcode in _IMM32:
        at += 8 if big and 0xB8 <= opcode < 0xC0 else 2 if short and opcode not in (0xE8, 0xE9) else 4
    return at - start


def _two_bytes(code: bytes, at: int, wide: bool) -> int:
    """Return the end of an x86 instruction with a two-byte opcode. `at` is the offset after its 0f."""
    opcode = code[at]
    if opcode == 0x38:
        return _modrm(code, at + 2, wide)
    if opcode == 0x3A:
        return _modrm(code, at + 2, wide) + 1
    if opcode in _TWO_NONE:
        return at + 1
    if 0x80 <= opcode < 0x90:  # jcc rel32
        return at + 5
    return _modrm(code, at + 1, wide) + (opcode in _TWO_IMM8)


def _vector(code: bytes, at: int, wide: bool) -> int:
    """Return the end of an x86 instruction with a VEX or EVEX prefix."""
    kind = code[at]
    table = 1 if kind == 0xC5 else code[at + 1] & (7 if kind == 0x62 else 0x1F)
    at += {0xC5: 2, 0xC4: 3, 0x62: 4}[kind]
    opcode = code[at]
    if opcode == 0x77 and table == 1:
        return at + 1
    return _modrm(code, at + 1, wide) + (table == 3 or (table == 1 and opcode in _TWO_IMM8))


def _modrm(code: bytes, at: int, wide: bool) -> int:
    """Return the end of an x86 ModRM byte with its SIB byte and displacement. 16-bit addressing is not supported."""
    mod, rm = code[at] >> 6, code[at] & 7
    at += 1
    if mod == 3:
        return at
    if rm == 4:
        rm = code[at] & 7
        at += 1
        if mod == 0 and rm == 5:
            return at + 4
    elif mod == 0 and rm == 5:
        return at + 4
    return at + (0, 1, 4)[mod]


MAX_INSTRUCTIONS = 64
"""Maximum number of x86 instructions of a prologue that are analysed."""

_ENTRY_BYTES = 16
"""Maximum number of bytes of an x86 function before its `push %rbp` (endbr, a test, a move)."""

_LINK = re.compile(rb"\x89\xe5|\x8b\xec")  # mov %esp,%ebp
_LINK_WIDE = re.compile(rb"\x48(?:\x89\xe5|\x8b\xec)")
_PUSH_FP = 0x55
_BETWEEN = 12
"""Maximum number of bytes of a prologue between `push %rbp` and `mov %rsp,%rbp`."""

# sp = sp - register, sp = register (not rbp: an epilogue), sp &= number
_MOVES_SP = re.compile(rb"[\x29\x89][\xc4\xcc\xd4\xdc\xe4\xf4\xfc]|[\x2b\x8b][\xe0-\xe4\xe6\xe7]|[\x81\x83]\xe4")
_MOVES_SP_WIDE = re.compile(
    rb"[\x48\x4c]\x29[\xc4\xcc\xd4\xdc\xe4\xec\xf4\xfc]|\x48\x89[\xc4\xcc\xd4\xdc\xe4\xf4\xfc]|\x4c\x89"
    rb"[\xc4\xcc\xd4\xdc\xe4\xec\xf4\xfc]|\x48[\x2b\x8b][\xe0-\xe4\xe6\xe7]|\x49[\x2b\x8b][\xe0-\xe7]|\x48[\x81\x83]\xe4"
)
_STORES_TOP = re.compile(
    rb"[\x48\x4c]?\x89[\x04\x0c\x14\x1c\x24\x2c\x34\x3c]\x24"
)  # mov %reg,(%rsp): a ret jumps there
_PROLOGUE = re.compile(rb"\xf3\x0f\x1e\xfa|\x41[\x54-\x57]|[\x53\x55]|\x48[\x81\x83]\xec")
_ENDBR = (b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfb")


def begins_with_prologue(code: bytes | memoryview, at: int = 0) -> bool:
    """Return True if x86-64 code begins at an offset as functions do: endbr64, a push of a callee-saved register, or
    `sub $n,%rsp`.
    """
    return _PROLOGUE.match(code, at) is not None


def _signed(code: bytes, at: int, size: int) -> int:
    return int.from_bytes(code[at : at + size], "little", signed=True)


def _depth(code: bytes, called: int, wide: bool) -> Depth | None:
    """Return the distance from sp up to the frame pointer at an offset of an x86 function, None if no frame record is
    linked before the offset.
    """
    link = (_LINK_WIDE if wide else _LINK).search(code, 0, called)
    if link is None:
        return None
    moves = (_MOVES_SP_WIDE if wide else _MOVES_SP).search(code, link.end()) is not None
    below, end = _prologue(code, link.end(), wide)
    return Depth(max(below, 0), not moves, _pushed(code, end, called, wide))


def _prologue(code: bytes, at: int, wide: bool) -> tuple[int, int]:
    """Analyse an x86 prologue from the instruction after `push %rbp` on.

    Returns:
        (distance in bytes from sp up to the frame pointer after the prologue, offset of the prologue's end).
    """
    word = 8 if wide else 4
    below, probed, room = 0, 0, False
    saved: set[int] = set()
    for _ in range(MAX_INSTRUCTIONS):
        size = instruction_length(code, at, wide)
        if not size:
            break
        text = code[at : at + size]
        bare = _bare(text, wide)
        if 0x50 <= bare[0] < 0x58:
            register = (bare[0] & 7) + (8 if len(bare) < size and text[0] & 1 else 0)
            if room or register in saved:
                break  # an argument
            saved.add(register)
            below += word
        elif (amount := _lowered(bare)) > 0:
            if room and amount == word:
                break  # alignment of arguments
            below += amount
            room = True
        elif text[:4] == b"\x4c\x8d\x9c\x24":  # lea -n(%rsp),%r11: the limit of a loop that touches each page
            probed = below - _signed(text, 4, 4)
        elif probed and text[:3] == b"\x4c\x39\xdc":  # cmp %r11,%rsp
            below, probed = probed, 0
            at += 2  # jne
        elif _leaves(bare):
            break
        at += size
    return below, at


def _pushed(code: bytes, at: int, called: int, wide: bool) -> int:
    """Return the number of bytes of arguments that x86 code has pushed for the call at an offset.

    Args:
        code: Code of the function.
        at: Offset of the end of the prologue.
        called: Offset of the call.
        wide: True for 64-bit code.
    """
    word = 8 if wide else 4
    pushed = 0
    while at < called:
        size = instruction_length(code, at, wide)
        if not size:
            return 0
        bare = _bare(code[at : at + size], wide)
        at += size
        if 0x50 <= bare[0] < 0x58 or bare[0] in (0x68, 0x6A) or (bare[0] == 0xFF and bare[1] >> 3 & 7 == 6):
            pushed += word
        elif 0x58 <= bare[0] < 0x60:
            pushed -= word
        elif amount := _lowered(bare):
            pushed += amount
        elif _leaves(bare) and at < called:
            pushed = 0
    return max(pushed, 0)


def _lowered(bare: bytes) -> int:
    """Return by how many bytes an x86 instruction lowers sp: a sub or add of a constant. Compilers write `sub $128` as
    the shorter `add $-128,%rsp`.
    """
    if bare[:1] not in (b"\x81", b"\x83") or bare[1:2] not in (b"\xc4", b"\xec"):
        return 0
    amount = _signed(bare, 2, len(bare) - 2)
    return amount if bare[1] == 0xEC else -amount


def _bare(text: bytes, wide: bool) -> bytes:
    """Return an x86 instruction without the prefixes notrack, bnd and REX."""
    text = text.lstrip(b"\x3e\xf2")
    return text[1:] if wide and text[:1] and text[0] & 0xF0 == 0x40 else text


def _leaves(bare: bytes) -> bool:
    """Match an x86 call, jump or return, or the end of a frame (leave, pop)."""
    if bare[0] == 0xFF:
        return bare[1] >> 3 & 7 in (2, 3, 4, 5)
    return bare[0] in (0xE8, 0xE9, 0xEB, 0xC3, 0xC9) or bare[0] & 0xF0 == 0x70 or _is_long_jcc(bare)


def _is_long_jcc(text: bytes) -> bool:
    return text[0] == 0x0F and text[1] & 0xF0 == 0x80


def _popped(code: bytes, wide: bool) -> int:
    """Return n if the x86 code after a call begins with add $n,%rsp, which removes arguments from the stack, else 0."""
    if wide:
        if code[:1] != b"\x48":
            return 0
        code = code[1:]
    return max(-_lowered(code[: 3 if code[:1] == b"\x83" else 6]), 0)


def _entries(code: bytes, wide: bool) -> Iterator[tuple[int, int]]:
    """Yield (minimum, maximum) offsets at which x86 functions begin that link frame records."""
    for link in (_LINK_WIDE if wide else _LINK).finditer(code):
        push = code.rfind(_PUSH_FP, max(link.start() - _BETWEEN, 0), link.start())
        if push >= 0:
            yield max(push - _ENTRY_BYTES, 0), push


def _jumps(code: bytes, address: int, wide: bool) -> Iterator[int | None]:
    """Yield the targets of all jumps in an x86 function, None for a jump with an unknown target."""
    at = 0
    before = b""
    while at < len(code):
        size = instruction_length(code, at, wide)
        text = code[at : at + size]
        at += size
        bare = _bare(text, wide)
        if not bare:
            if len(code) - at >= LONGEST:
                yield None
            return
        if bare[0] in (0xEB, 0xE9) or bare[0] & 0xF0 == 0x70 or _is_long_jcc(bare):
            operand = 4 if bare[0] in (0xE9, 0x0F) else 1
            yield address + at + _signed(bare, len(bare) - operand, operand)
        elif (bare[0] == 0xFF and (bare[1] >> 3) & 7 == 4 and not _adds(before)) or (
            bare[0] == 0xC3 and _STORES_TOP.fullmatch(before)
        ):
            yield None
        before = text


def _adds(text: bytes) -> bool:
    """Return True if the x86 instruction is an add to a register.

    An indirect jump after it uses a switch table, and stays in the function.
    """
    return text[-2:-1] == b"\x01"


def _called_slot(code: bytes, address: int) -> int | None:
    """Return the address of the slot that the x86-64 call *disp32(%rip) before an address reads, None for other
    code.
    """
    return address + _signed(code, len(code) - 4, 4) if len(code) >= 6 and code[-6:-4] == b"\xff\x15" else None


def _jumped_slot(code: bytes, address: int) -> int | None:
    """Return the address of the slot that the x86-64 jmp *disp32(%rip) at an address reads, perhaps after endbr64 and
    bnd. Return None for other code.
    """
    at = 4 if code[:4] in _ENDBR else 0
    at += code[at : at + 1] == b"\xf2"
    return address + at + 6 + _signed(code, at + 2, 4) if code[at : at + 2] == b"\xff\x25" else None


def _jump(code: bytes, address: int) -> int | None:
    """Return the target of the x86 jmp rel32 at an address, perhaps after endbr64, None for other code."""
    at = 4 if code[:4] in _ENDBR else 0
    return address + at + 5 + _signed(code, at + 1, 4) if code[at : at + 1] == b"\xe9" else None


def _no_slot(code: bytes, address: int) -> int | None:
    return None


def frame_code(wide: bool) -> FrameCode:
    """Return the analysis of frame-pointer code for 64-bit (if wide) or 32-bit x86."""
    return FrameCode(
        depth=lambda code, called: _depth(code, called, wide),
        popped=lambda code: _popped(code, wide),
        entries=lambda code: _entries(code, wide),
        jumps=lambda code, address: _jumps(code, address, wide),
        jump=_jump,
        called_slot=_called_slot if wide else _no_slot,
        jumped_slot=_jumped_slot if wide else _no_slot,
    )
