"""The places of the CFA and of the caller's registers before an instruction, and how instructions change them.

A place is an origin and an offset from it. The origin is the CFA, or the value that an instruction gave to the stack
pointer and whose distance from the CFA is unknown: a stack that is aligned, or of a variable size.
native/flow/state.h has the same functions in C.
"""

from __future__ import annotations

from typing import NamedTuple

from pyprof.unwind.code_analysis.x86_instruction_decoder import CALLEE_SAVED, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP

CFA = -1
"""Origin of a FramePlace that is an offset from the CFA. The other origins are addresses of instructions that gave rsp
a value at an unknown distance from the CFA.
"""

MAX_OFFSET = 1 << 30
"""Maximum distance of a FramePlace from its origin, in bytes. The analysis refuses code with larger distances."""

RED_ZONE = 128
"""Size in bytes of the red zone: the memory directly below rsp that signal handlers leave intact."""

CALLER_SAVED = 0x0FC7
"""Bit mask of the registers that a call may overwrite: rax rcx rdx rsi rdi r8 to r11."""

_SLOT = {register: at for at, register in enumerate(CALLEE_SAVED)}
_FP = _SLOT[RBP]


class AnalysisLimitExceeded(Exception):
    """The analysis of a function exceeds a limit on its work."""


class Contradiction(Exception):
    """The error of a code analysis whose assumptions do not fit the code, for example two stack depths at one place.

    Attributes:
        call: Address of a call on the path that probably does not return, which would explain the contradiction. None
            if there is no such call.
    """

    def __init__(self, call: int | None = None) -> None:
        super().__init__()
        self.call = call


class FramePlace(NamedTuple):
    """An address in the analysed function's frame: an offset from the CFA, or from another origin."""

    origin: int
    offset: int


class KeptAddress(NamedTuple):
    """A word of the frame in which the code has stored an address at a known distance from the CFA, mostly rsp at the
    function's entry. The word is at place + (index_register << scale).

    Attributes:
        place: Place of the word, without the index register.
        index_register: Register that is added to the place, -1 if there is none.
        scale: Binary logarithm of the factor of the index register.
        offset: Stored address minus the CFA, in bytes.
    """

    place: FramePlace
    index_register: int
    scale: int
    offset: int


KEPT, LOST = FramePlace(-2, 0), FramePlace(-2, 1)
"""Values in FrameState.saved for a callee-saved register that is not saved in the frame: its caller's value is still in
the register (KEPT) or unknown (LOST).
"""

_UNKNOWN = (None,) * 16
_ENTRY = (*_UNKNOWN[:RSP], FramePlace(CFA, -8), *_UNKNOWN[RSP + 1 :])


class FrameState(NamedTuple):
    """The state of a frame before an instruction, as the code analysis knows it: the targets of registers, and the
    places of the caller's registers.

    Attributes:
        values: For each general register, the place in the frame to which it points, None if that is unknown.
        saved: For each callee-saved register, where the caller's value is: KEPT, LOST or a place in the frame.
        kept: A word of the frame from which the CFA can be computed, or None.
        outermost: The code has cleared rbp as the ABI demands of a thread's first function.
    """

    values: tuple[FramePlace | None, ...] = _ENTRY
    saved: tuple[FramePlace, ...] = (KEPT,) * len(CALLEE_SAVED)
    kept: KeptAddress | None = None
    outermost: bool = False

    @property
    def sp(self) -> int | None:
        """The offset of rsp from the CFA in bytes, None if it is unknown."""
        return self.distance(RSP)

    @property
    def base(self) -> int | None:
        """The offset of rbp from the CFA in bytes, None if it is unknown."""
        return self.distance(RBP)

    def distance(self, register: int) -> int | None:
        """Return the offset of a register from the CFA in bytes, or None if it is unknown."""
        value = self.values[register]
        return value.offset if value is not None and value.origin == CFA else None

    def pointer_to(self, origin: int) -> int | None:
        """Return rbp or rsp if that register is at a known offset from an origin (the CFA or an instruction's address),
        or None if neither is.
        """
        for register in (RBP, RSP):
            value = self.values[register]
            if value is not None and value.origin == origin:
                return register
        return None

    @property
    def has_cfa(self) -> bool:
        """True if the CFA can be computed."""
        if any(value is not None and value.origin == CFA for value in self.values) or self.outermost:
            return True
        return self.kept is not None and self.pointer_to(self.kept.place.origin) is not None


ENTRY = FrameState()


def with_value(state: FrameState, register: int, value: FramePlace | None) -> FrameState:
    """Return the frame state after an instruction has given a known value to a register other than rsp."""
    values, saved, kept = state.values, state.saved, state.kept
    if register == RBP and saved[_FP] == KEPT:
        saved = (*saved[:_FP], LOST, *saved[_FP + 1 :])
    if kept is not None and kept.index_register == register:
        kept = None
    if values[register] != value:
        values = (*values[:register], value, *values[register + 1 :])
    return FrameState(values, saved, kept, state.outermost)


def without_values(state: FrameState, mask: int) -> FrameState:
    """Return the frame state after an instruction has given unknown values to the registers of a bit mask, which does
    not contain rsp.
    """
    for register in range(16):
        if mask >> register & 1:
            state = with_value(state, register, None)
    return state


def with_sp(state: FrameState, sp: FramePlace | None, call: int | None) -> FrameState:
    """Return the frame state after an instruction has set rsp. Stored words below the new rsp count as lost."""
    values = (*state.values[:RSP], sp, *state.values[RSP + 1 :])
    if sp is None:
        return state._replace(values=values)
    if abs(sp.offset) > MAX_OFFSET or (sp.origin == CFA and sp.offset > -8):
        raise Contradiction(call)
    saved, kept = state.saved, state.kept
    if any(_is_below(place, sp) for place in saved):
        saved = tuple(LOST if _is_below(place, sp) else place for place in saved)
    if kept is not None and _is_below(kept.place, sp, RED_ZONE):
        kept = None
    return FrameState(values, saved, kept, state.outermost)


def after_call(state: FrameState) -> FrameState:
    """Return the frame state after a call that returns."""
    sp, kept = state.values[RSP], state.kept
    if sp is not None and kept is not None and _is_below(kept.place, sp):
        state = state._replace(kept=None)
    return without_values(state, CALLER_SAVED)


def _is_below(place: FramePlace, sp: FramePlace, room: int = 0) -> bool:
    """Return True if a place in the frame is, or may be, more than `room` bytes below rsp. Places with another origin
    than the CFA are below all places relative to the CFA.
    """
    if place.origin == -2:
        return False
    return place.offset < sp.offset - room if place.origin == sp.origin else sp.origin == CFA


def push(state: FrameState, register: int, value: FramePlace | None, call: int | None) -> FrameState:
    """Return the frame state after a push instruction.

    Args:
        state: The state before.
        register: The pushed register, -1 if a constant or a word of memory is pushed.
        value: The place in the frame to which the pushed value points, None if unknown.
        call: Address of the call on the path to the push that is most likely not to return, None if there is none.
    """
    sp = state.values[RSP]
    if sp is None or state.outermost:
        return state
    place = FramePlace(sp.origin, sp.offset - 8)
    return store(with_sp(state, place, call), register, place, -1, 0, value)


def store(
    state: FrameState, register: int, place: FramePlace, index: int, scale: int, value: FramePlace | None
) -> FrameState:
    """Return the frame state after an instruction has stored eight bytes at a place in the frame.

    Args:
        state: The state before.
        register: The stored register, -1 if another value is stored.
        place: Place of the stored word, without the index register.
        index: Register that is added to the place, -1 if there is none.
        scale: Binary logarithm of the factor of the index register.
        value: The place in the frame to which the stored value points, None if unknown.
    """
    sp = state.values[RSP]
    if sp is not None and _is_below(place, sp, RED_ZONE if register < 0 or value is not None else 0):
        return state
    at, kept = _SLOT.get(register, -1), state.kept
    in_frame = place.origin != CFA or (place.offset < -8 and place.offset % 8 == 0)
    saves = at >= 0 and index < 0 and state.saved[at] == KEPT and value is None
    if saves and in_frame:
        state = state._replace(saved=(*state.saved[:at], place, *state.saved[at + 1 :]))
    if value is not None and value.origin == CFA:
        if kept is None or value.offset >= kept.offset or (kept.place, kept.index_register) == (place, index):
            return state._replace(kept=KeptAddress(place, index, scale, value.offset))
    elif kept is not None and (kept.place, kept.index_register) == (place, index):
        return state._replace(kept=None)
    return state


def loaded_value(state: FrameState, place: FramePlace | None, index: int, scale: int) -> FramePlace | None:
    """Return the place in the frame to which a word of the frame points, or None if that is unknown."""
    kept = state.kept
    if kept is None or (kept.place, kept.index_register, kept.scale) != (place, index, scale):
        return None
    return FramePlace(CFA, kept.offset)


def load(state: FrameState, register: int, place: FramePlace | None, index: int, scale: int) -> FrameState:
    """Return the frame state after a register other than rsp was loaded with eight bytes from a place."""
    at = _SLOT.get(register, -1)
    value = loaded_value(state, place, index, scale)
    restored = at >= 0 and index < 0 and state.saved[at] == place
    state = with_value(state, register, value)
    return state._replace(saved=(*state.saved[:at], KEPT, *state.saved[at + 1 :])) if restored else state


def pop(state: FrameState, register: int, at: int, call: int | None) -> FrameState:
    """Return the frame state after a pop instruction at an address. `register` is -1 if it does not pop into a
    register.
    """
    sp = state.values[RSP]
    if state.outermost:
        return state
    if sp is not None and sp.origin == CFA and sp.offset >= -8:
        raise Contradiction(call)  # this would pop the return address
    place = _SLOT.get(register, -1)
    if place >= 0 and state.saved[place] == KEPT:
        state = state._replace(saved=(*state.saved[:place], LOST, *state.saved[place + 1 :]))
    if register == RSP:
        return with_sp(state, FramePlace(at, 0), call)
    if register >= 0:
        state = load(state, register, sp, -1, 0)
    return with_sp(state, FramePlace(sp.origin, sp.offset + 8), call) if sp is not None else state


def merge(one: FrameState, two: FrameState) -> FrameState | None:
    """Return the frame state with the facts that hold in both of two states, or None if the states contradict each
    other.
    """
    values = tuple(a if a == b else None for a, b in zip(one.values, two.values, strict=True))
    saved = tuple(a if a == b else LOST for a, b in zip(one.saved, two.saved, strict=True))
    found = FrameState(values, saved, one.kept if one.kept == two.kept else None, one.outermost)
    if one.outermost != two.outermost:
        return None
    if one.sp is not None and two.sp is not None:  # then the other registers are arguments and the like
        return found if found.sp is not None or found.base is not None else None
    return found if found.has_cfa else None


IN_REGISTER, NOT_KNOWN, AT_CFA, AT_POINTER = range(4)
"""Kinds of rules of a callee-saved register. The caller's value is in the register, unknown, at an offset from the CFA,
or at an offset from rbp or rsp.
"""

_BASES = (RSP, RBP, RBX, *range(12, 16), RAX, RCX, RDX, RSI, RDI, *range(8, 12))
"""Registers from which an unwind rule may compute the CFA, the preferred ones first."""


class FrameRow(NamedTuple):
    """The unwind rule that follows from a frame state, in x86-64 registers.

    The CFA is register + offset. If register is -1, it is [pointer + place + (index_register << scale)] + distance.

    Attributes:
        outermost: 1 if the frame has no caller, else 0.
        register: Register from which the CFA is computed, or -1 if a word of the frame gives the CFA.
        offset: Offset of the CFA from `register`, in bytes.
        pointer: Register from which the word is found, -1 if `register` is used.
        place: Offset of the word from `pointer`, in bytes.
        index_register: Register that is scaled and added to the address of the word, -1 if there is none.
        scale: Binary logarithm of the factor of the index register.
        distance: Offset of the CFA from the value of the word, in bytes.
        saved: Three numbers for each callee-saved register: the kind of its rule (such as AT_CFA), the base register of
            AT_POINTER or -1, and the offset.
    """

    outermost: int
    register: int
    offset: int
    pointer: int
    place: int
    index_register: int
    scale: int
    distance: int
    saved: tuple[int, ...]


def make_row(state: FrameState) -> FrameRow:
    """Return the unwind rule that follows from a frame state whose CFA is known."""
    if state.outermost:
        return FrameRow(1, RSP, 0, -1, 0, -1, 0, 0, (IN_REGISTER, 0, 0) * len(CALLEE_SAVED))
    saved: tuple[int, ...] = sum((_saved_row(state, place) for place in state.saved), ())
    kept = state.kept if state.sp is None and state.base is None else None
    pointer = state.pointer_to(kept.place.origin) if kept is not None else None
    if kept is not None and pointer is not None:
        place = kept.place.offset - _offset(state, pointer)
        return FrameRow(0, -1, 0, pointer, place, kept.index_register, kept.scale, -kept.offset, saved)
    register = next(register for register in _BASES if state.distance(register) is not None)
    return FrameRow(0, register, -_offset(state, register), -1, 0, -1, 0, 0, saved)


def _saved_row(state: FrameState, place: FramePlace) -> tuple[int, int, int]:
    if place == KEPT:
        return IN_REGISTER, -1, 0
    if place.origin == CFA and (state.sp is None or place.offset >= state.sp):
        return AT_CFA, -1, place.offset
    pointer = state.pointer_to(place.origin) if place not in (LOST, KEPT) and place.origin != CFA else None
    if pointer is None:
        return NOT_KNOWN, -1, 0
    return AT_POINTER, pointer, place.offset - _offset(state, pointer)


def _offset(state: FrameState, register: int) -> int:
    value = state.values[register]
    assert value is not None
    return value.offset
