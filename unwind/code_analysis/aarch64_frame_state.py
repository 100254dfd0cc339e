"""The state of an AArch64 frame before an instruction, and how each instruction changes it.

The decoder knows the instructions of Armv8 and Armv9 that user programs run, except those of SVE and SME. A function
with these gets no rules.
"""

from __future__ import annotations

from typing import NamedTuple

from pyprof.unwind.code_analysis.cfa_and_register_state import CFA, KEPT, LOST, MAX_OFFSET, Contradiction, FramePlace

FP, LR, SP = 29, 30, 31
"""AArch64 register numbers of the frame pointer, the link register and the stack pointer. In some instructions, 31 is
the zero register.
"""

FIRST_SAVED = 19
"""Number of the first callee-saved AArch64 register, x19. The last is the link register, x30."""

NUMBER = -3
"""Origin of a FramePlace that stands for a constant, not for an address in the frame."""

CALLER_SAVED = (1 << 19) - 1
"""Bit mask of the AArch64 registers that a call may overwrite: x0 to x18."""

_NONE = 1 << SP
"""Bit mask of register number 31, the AArch64 zero register. Writing it has no effect."""


class Aarch64State(NamedTuple):
    """The state of an AArch64 frame before an instruction, as the code analysis knows it.

    Attributes:
        values: For x0 to x30 and sp, the place in the frame to which the register points, or a constant. None if the
            value is unknown.
        saved: For x19 to x30, where the caller's value is: KEPT, LOST or a place in the frame.
        outermost: The code has cleared x29 at the start of a program or of a thread.
    """

    values: tuple[FramePlace | None, ...] = (*(None,) * SP, FramePlace(CFA, 0))
    saved: tuple[FramePlace, ...] = (KEPT,) * (SP - FIRST_SAVED)
    outermost: bool = False

    def distance(self, register: int) -> int | None:
        """Return the offset of an AArch64 register from the CFA in bytes, or None if it is unknown."""
        value = self.values[register]
        return value.offset if value is not None and value.origin == CFA else None

    @property
    def has_cfa(self) -> bool:
        """True if the CFA can be computed."""
        return self.outermost or any(value is not None and value.origin == CFA for value in self.values)

    @property
    def can_return(self) -> bool:
        """True if the stack pointer and the link register are those of the function's entry."""
        return self.distance(SP) == 0 and self.saved[LR - FIRST_SAVED] == KEPT


ENTRY = Aarch64State()


def with_value(state: Aarch64State, register: int, value: FramePlace | None) -> Aarch64State:
    """Return the AArch64 frame state after an instruction has given a value to a register other than sp."""
    values, saved = state.values, state.saved
    if register in (FP, LR) and saved[register - FIRST_SAVED] == KEPT:
        saved = _replaced(saved, register - FIRST_SAVED, LOST)
    if values[register] != value:
        values = (*values[:register], value, *values[register + 1 :])
    return state._replace(values=values, saved=saved)


def without_values(state: Aarch64State, mask: int) -> Aarch64State:
    """Return the AArch64 frame state after an instruction has given unknown values to the registers of a bit mask,
    which does not contain sp.
    """
    for register in range(SP):
        if mask >> register & 1 and (register in (FP, LR) or state.values[register] is not None):
            state = with_value(state, register, None)
    return state


def with_sp(state: Aarch64State, value: FramePlace | None, call: int | None) -> Aarch64State:
    """Return the AArch64 frame state after an instruction has set sp. Stored words below the new sp count as lost."""
    values = (*state.values[:SP], value)
    if value is None or value.origin != CFA:
        return state._replace(values=(*values[:SP], None))
    if value.offset > 0 or value.offset < -MAX_OFFSET:
        raise Contradiction(call)
    saved = tuple(LOST if p.origin == CFA and p.offset < value.offset else p for p in state.saved)
    return state._replace(values=values, saved=saved)


def after_call(state: Aarch64State) -> Aarch64State:
    """Return the AArch64 frame state after a call that returns."""
    return without_values(state, CALLER_SAVED | 1 << LR)


def merge(one: Aarch64State, two: Aarch64State) -> Aarch64State | None:
    """Return the AArch64 frame state with the facts that hold in both of two states, or None if the states contradict
    each other.
    """
    values = tuple(a if a == b else None for a, b in zip(one.values, two.values, strict=True))
    saved = tuple(a if a == b else LOST for a, b in zip(one.saved, two.saved, strict=True))
    found = Aarch64State(values, saved, one.outermost)
    if one.outermost != two.outermost:
        return None
    if one.distance(SP) is not None and two.distance(SP) is not None:
        return found if found.distance(SP) is not None or found.distance(FP) is not None else None
    return found if found.has_cfa else None


def moved(value: FramePlace | None, distance: int) -> FramePlace | None:
    """Return a register's value (a place in the frame or a constant) plus a distance in bytes, or None if the value is
    unknown or the result too large.
    """
    if value is None or abs(value.offset + distance) > MAX_OFFSET:
        return None
    return FramePlace(value.origin, value.offset + distance)


def compute(word: int, state: Aarch64State, call: int | None) -> Aarch64State:
    """Return the frame state after an AArch64 instruction that is no branch.

    Args:
        word: The instruction, a number of 32 bits.
        state: The frame state before the instruction.
        call: Address of the call on the path to the instruction that is most likely not to return, or None.

    Raises:
        Contradiction: The instruction is unknown, or moves sp above the CFA.
    """
    group = word >> 25 & 15
    if group & 0b0101 == 0b0100:
        return _load_or_store(word, state, call)
    if group & 0b1110 == 0b1000:
        return _compute_immediate(word, state, call)
    if group & 0b0111 == 0b0101:
        return _compute_registers(word, state, call)
    if group & 0b0111 == 0b0111:
        return without_values(state, 1 << (word & 31) & ~_NONE) if _is_to_general(word) else state
    if group & 0b1110 == 0b1010:
        return _system(word, state)
    raise Contradiction(call)


def _set(state: Aarch64State, register: int, value: FramePlace | None, is_sp: bool, call: int | None) -> Aarch64State:
    """Return the AArch64 frame state after a register was set. Register number 31 is sp if is_sp is True, else the zero
    register.
    """
    if register != SP:
        return with_value(state, register, value)
    return with_sp(state, value, call) if is_sp else state


def _compute_immediate(word: int, state: Aarch64State, call: int | None) -> Aarch64State:
    kind, rd, rn = word >> 23 & 7, word & 31, word >> 5 & 31
    is_64 = word >> 31
    if kind == 0b010:  # add, sub
        number = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
        value = moved(state.values[rn], -number if word >> 30 & 1 else number) if is_64 else None
        return _set(state, rd, value, not word >> 29 & 1, call)
    if kind == 0b101:  # movn, movz, movk
        number, shift, opcode = word >> 5 & 0xFFFF, 16 * (word >> 21 & 3), word >> 29 & 3
        before = state.values[rd] if rd != SP else None
        value = None
        if opcode == 2:
            value = FramePlace(NUMBER, number << shift)
        elif opcode == 3 and before is not None and before.origin == NUMBER:
            value = FramePlace(NUMBER, before.offset & ~(0xFFFF << shift) | number << shift)
        return _set(state, rd, value if value is None or value.offset <= MAX_OFFSET else None, False, call)
    is_sp = kind == 0b011 or (kind == 0b100 and word >> 29 & 3 != 3)
    return _set(state, rd, None, is_sp, call)


def _compute_registers(word: int, state: Aarch64State, call: int | None) -> Aarch64State:
    rd, rn, rm = word & 31, word >> 5 & 31, word >> 16 & 31
    if word & 0xFFE0_FFE0 == 0xAA00_03E0:  # mov
        return _set(state, rd, state.values[rm] if rm != SP else FramePlace(NUMBER, 0), False, call)
    is_extended = word & 0x1F20_0000 == 0x0B20_0000
    if is_extended and word >> 31 and not word >> 29 & 1:
        number, value = state.values[rm] if rm != SP else FramePlace(NUMBER, 0), None
        if number is not None and number.origin == NUMBER and word >> 13 & 7 == 3:  # uxtx
            distance = number.offset << (word >> 10 & 7)
            value = moved(state.values[rn], -distance if word >> 30 & 1 else distance)
        return _set(state, rd, value, True, call)
    if word & 0x1FE0_0000 == 0x1A40_0000:  # ccmp, ccmn
        return state
    return _set(state, rd, None, is_extended and not word >> 29 & 1, call)


def _is_to_general(word: int) -> bool:
    """Return True if an AArch64 floating-point or vector instruction writes a general register."""
    if word & 0x5F20_FC00 == 0x1E20_0000:  # conversions, fmov
        return word >> 16 & 7 in (0, 1, 4, 5, 6)
    if word & 0x5F20_0000 == 0x1E00_0000:  # conversions to fixed point
        return word >> 16 & 7 in (0, 1)
    return word & 0xBFE0_FC00 in (0x0E00_2C00, 0x0E00_3C00)  # smov, umov


def _system(word: int, state: Aarch64State) -> Aarch64State:
    """Return the frame state after an AArch64 system instruction. Signing the link register does not count as a
    change.
    """
    if word & 0xFFC0_0000 == 0xD500_0000 and word >> 21 & 1:  # mrs, sysl
        return without_values(state, 1 << (word & 31) & ~_NONE)
    if word & 0xFFFF_F0FF == 0xD503_201F and word & 0xF00 == 0x100:  # pacia1716 and the like
        return without_values(state, 1 << 17)
    return state


def _load_or_store(word: int, state: Aarch64State, call: int | None) -> Aarch64State:
    kind, rt, rn = word >> 27 & 7, word & 31, word >> 5 & 31
    if kind == 0b101:
        return _load_or_store_pair(word, state, call)
    if kind == 0b111:
        return _load_or_store_one(word, state, call)
    if kind == 0b001 and word >> 26 & 1:  # st1, ld1 and the like
        return _set(state, rn, None, True, call) if word >> 23 & 1 else state
    if kind == 0b001:  # exclusive access, compare and swap
        is_load, is_swap = word >> 22 & 1, word >> 21 & 1 and (word >> 23 & 1 or not word >> 31)
        written = 1 << (word >> 16 & 31)
        if is_swap:
            written |= 2 << (word >> 16 & 31)
        elif is_load:
            written |= 1 << rt | 1 << (word >> 10 & 31)
        return without_values(state, written & ~_NONE)
    if kind == 0b011 and not word >> 24 & 1:  # load of a literal
        return state if word >> 26 & 1 or word >> 30 == 3 else without_values(state, 1 << rt & ~_NONE)
    if kind == 0b011 and word >> 21 & 1:  # memory tags
        state = without_values(state, 1 << rt & ~_NONE) if rt != LR else state
        return _set(state, rn, None, True, call) if word >> 10 & 1 else state
    if kind == 0b011 and word & 0xC00 == 0:  # ldapur, stlur
        return without_values(state, 1 << rt & ~_NONE) if word >> 22 & 3 else state
    if kind == 0b011:  # cpy, set
        return without_values(state, (1 << rt | 1 << rn | 1 << (word >> 16 & 31)) & ~_NONE)
    raise Contradiction(call)


def _load_or_store_pair(word: int, state: Aarch64State, call: int | None) -> Aarch64State:
    opcode, is_vector, mode, is_load = word >> 30, word >> 26 & 1, word >> 23 & 3, word >> 22 & 1
    size = 4 << opcode if is_vector else 4 << (opcode >> 1)
    scale = 16 if opcode == 1 and not is_vector and not is_load else size  # stgp
    distance = _signed(word >> 15, 7) * scale
    registers = () if is_vector else ((word & 31, 0), (word >> 10 & 31, size))
    length = 2 * max(size, scale if not is_load else 0)
    return _access(state, word >> 5 & 31, mode, distance, registers, length, size, bool(is_load), call)


def _load_or_store_one(word: int, state: Aarch64State, call: int | None) -> Aarch64State:
    is_vector, opcode, rt = word >> 26 & 1, word >> 22 & 3, word & 31
    size = 16 if is_vector and opcode & 2 else 1 << (word >> 30)
    is_load = opcode & 1 if is_vector else opcode != 0
    mode, distance = 2, 0
    if word >> 24 & 1:
        distance = (word >> 10 & 0xFFF) * size
    elif not word >> 21 & 1:
        mode, distance = (2, 1, 2, 3)[word >> 10 & 3], _signed(word >> 12, 9)
    else:  # atomic operations, ldraa and ldrab, and accesses with an index register
        is_index = word >> 10 & 3 == 2
        if not is_vector and (is_load or not is_index):
            state = without_values(state, 1 << rt & ~_NONE)
        return _set(state, word >> 5 & 31, None, True, call) if word >> 10 & 3 == 3 else state
    if not is_vector and opcode == 2 and word >> 30 == 3:  # prfm
        return state
    registers = () if is_vector else ((rt, 0),)
    return _access(state, word >> 5 & 31, mode, distance, registers, size, size, bool(is_load), call)


def _access(
    state: Aarch64State,
    base: int,
    mode: int,
    distance: int,
    registers: tuple[tuple[int, int], ...],
    length: int,
    size: int,
    is_load: bool,
    call: int | None,
) -> Aarch64State:
    """Return the frame state after an AArch64 load or store.

    Args:
        state: The frame state before the instruction.
        base: Number of the base register.
        mode: 1 to change the base register after the access, 3 to do so before it, else it does not change.
        distance: Number of bytes that is added to the base register.
        registers: Each general register that is loaded or stored, with its offset in the accessed bytes.
        length: Number of accessed bytes.
        size: Number of bytes of one register.
        is_load: True for a load.
        call: Address of the call on the path to the instruction that is most likely not to return, or None.
    """
    target = moved(state.values[base], distance)
    place = state.values[base] if mode == 1 else target
    if mode == 3:
        state = _set(state, base, target, True, call)
    if is_load:
        for register, offset in registers:
            state = _load(state, register, moved(place, offset) if size == 8 else None)
    elif place is not None and place.origin == CFA:
        state = _store(state, registers if size == 8 else (), place, length)
    return _set(state, base, target, True, call) if mode == 1 else state


def _load(state: Aarch64State, register: int, place: FramePlace | None) -> Aarch64State:
    if register == SP:  # the zero register
        return state
    at = register - FIRST_SAVED
    restored = at >= 0 and place is not None and place.origin == CFA and state.saved[at] == place
    state = with_value(state, register, None)
    return state._replace(saved=_replaced(state.saved, at, KEPT)) if restored else state


def _store(state: Aarch64State, registers: tuple[tuple[int, int], ...], place: FramePlace, length: int) -> Aarch64State:
    """Return the AArch64 frame state after `length` bytes of the frame at `place` were overwritten. `registers` are
    those stored there, each with its offset.
    """
    first, sp = place.offset, state.distance(SP)
    saved = [LOST if at.origin == CFA and first - 8 < at.offset < first + length else at for at in state.saved]
    for register, offset in registers:
        at, stored = register - FIRST_SAVED, first + offset
        is_callers = 0 <= at < len(saved) and state.saved[at] == KEPT and state.values[register] is None
        if is_callers and stored <= -8 and (sp is None or stored >= sp):
            saved[at] = FramePlace(CFA, stored)
    return state._replace(saved=tuple(saved))


def _replaced(saved: tuple[FramePlace, ...], at: int, value: FramePlace) -> tuple[FramePlace, ...]:
    return (*saved[:at], value, *saved[at + 1 :])


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)
