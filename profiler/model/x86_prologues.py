"""Frames and calls of x86 code that is compiled with frame pointers.

Functions begin with `push %rbp; mov %rsp,%rbp`, save registers by pushes and allocate space with `sub $n,%rsp`. A
compiler may put other instructions in between. Source: Intel SDM volume 2; prologues in the output of gcc and clang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyprof.model.arch_type import Depth, FrameCode
from pyprof.model.x86_length import LONGEST, instruction_length

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
    """Return the distance from sp to the frame pointer at an offset of an x86 function (see FrameCode.depth)."""
    link = (_LINK_WIDE if wide else _LINK).search(code, 0, called)
    if link is None:
        return None
    moves = (_MOVES_SP_WIDE if wide else _MOVES_SP).search(code, link.end()) is not None
    below, end = _prologue(code, link.end(), wide)
    return Depth(max(below, 0), not moves, _pushed(code, end, called, wide))


def _prologue(code: bytes, at: int, wide: bool) -> tuple[int, int]:
    """Analyse an x86 prologue from the instruction after `push %rbp` on.

    Returns:
        (distance from sp up to the frame pointer after it, its end).
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
    """Return the number of bytes of pushed arguments in x86 code (see Depth.pushed). `at` is the end of the
    prologue.
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
    """Return by how many bytes an x86 sub or add of a number lowers sp. Compilers write 128 as the shorter `add
    $-128,%rsp`.
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
    """Return n if the x86 code begins with add $n,%rsp, else 0 (see FrameCode.popped)."""
    if wide:
        if code[:1] != b"\x48":
            return 0
        code = code[1:]
    return max(-_lowered(code[: 3 if code[:1] == b"\x83" else 6]), 0)


def _entries(code: bytes, wide: bool) -> Iterator[tuple[int, int]]:
    """Yield where x86 functions begin that link frame records (see FrameCode.entries)."""
    for link in (_LINK_WIDE if wide else _LINK).finditer(code):
        push = code.rfind(_PUSH_FP, max(link.start() - _BETWEEN, 0), link.start())
        if push >= 0:
            yield max(push - _ENTRY_BYTES, 0), push


def _jumps(code: bytes, address: int, wide: bool) -> Iterator[int | None]:
    """Yield the targets of all jumps in an x86 function (see FrameCode.jumps)."""
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
    """Return True if the x86 instruction adds an address.

    The next jump then belongs to a switch, and stays in the function.
    """
    return text[-2:-1] == b"\x01"


def _called_slot(code: bytes, address: int) -> int | None:
    """Match the x86-64 call *disp32(%rip) (see FrameCode.called_slot)."""
    return address + _signed(code, len(code) - 4, 4) if len(code) >= 6 and code[-6:-4] == b"\xff\x15" else None


def _jumped_slot(code: bytes, address: int) -> int | None:
    """Match the x86-64 jmp *disp32(%rip), perhaps after endbr64 and bnd (see FrameCode.jumped_slot)."""
    at = 4 if code[:4] in _ENDBR else 0
    at += code[at : at + 1] == b"\xf2"
    return address + at + 6 + _signed(code, at + 2, 4) if code[at : at + 2] == b"\xff\x25" else None


def _jump(code: bytes, address: int) -> int | None:
    """Match the x86 jmp rel32, perhaps after endbr64 (see FrameCode.jump)."""
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
