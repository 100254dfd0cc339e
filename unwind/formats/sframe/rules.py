"""A decoder of the data words of one SFrame row to a Rule.

    DEFAULT   cfa = sp|fp + word 1; ra = [cfa + fixed] or word 2 tracks it; fp = [cfa + next word] or same
    FLEX      pairs (control, offset) for cfa, ra, fp; control 0 stands alone: the default place
              value = reg + offset (bit 0: register, else cfa) and, with bit 1, the word found there
    no words  outermost frame

Source: SFrame V3, chapter 3; V2 errata 1, chapter 3 (s390x); V2 errata 2 (no words). The order of FLEX words is that of
chapter 3.2 and of every producer; the pseudo-code of appendix A has it wrong.
"""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.unwind.dwarf_expressions import encode_deref, encode_register_plus
from pyprof.unwind.formats.sframe.index import S390X_BIG, SFrameIndex
from pyprof.unwind.rules import UNDEFINED, RegKind, RegRule, Rule

FLEX_REGISTER, FLEX_DEREF, FLEX_NUMBER_SHIFT = 1, 2, 3
S390X_CFA_SCALE, S390X_CFA_ADJUSTMENT = 8, 160
MAX_DWARF_REGISTER = 0xFFFF


class RowReader:
    """A decoder of the rows of one SFrame section. Equal rows give the same Rule object."""

    def __init__(self, index: SFrameIndex, arch: Arch, section: str) -> None:
        self._index = index
        self._arch = arch
        self._section = section
        self._order = "<" if index.byteorder == "little" else ">"
        self._s390x = index.abi == S390X_BIG
        self._encoded_registers = self._s390x and index.version < 3
        # SFrame does not describe other registers that the function may have saved. They count as lost, because the
        # rule of an outer frame would otherwise compute with their values in this frame.
        lost = sorted(arch.callee_saved - {arch.sp, arch.fp, arch.pc})
        self._lost = tuple((column, UNDEFINED) for column in lost)
        self._known: dict[tuple[bytes, bool, bool], Rule] = {}

    def outermost(self, signal: bool) -> Rule:
        """Return the unwind rule of a frame that has no caller."""
        return Rule(self._arch.sp, 0, UNDEFINED, (), signal=signal)

    def rule(self, row: bytes, flex: bool, signal: bool, at: int) -> Rule:
        """Decode an SFrame row to an unwind rule.

        Args:
            row: The info byte and the data words.
            flex: The function has the type FLEX.
            signal: The function is a signal trampoline.
            at: Section offset of the row, for errors.

        Raises:
            FormatError: The row is invalid.
        """
        key = (row, flex, signal)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(row, flex, signal, at)
        return found

    def _read(self, row: bytes, flex: bool, signal: bool, at: int) -> Rule:
        info = row[0]
        count = (info >> 1) & 0xF
        if not count:
            return self.outermost(signal)
        size = 1 << (info >> 5 & 3)
        words = struct.unpack(f"{self._order}{count}{'bhxi'[size - 1]}", row[1:])
        read = self._flex if flex else self._default
        return read(words, info, size, signal, at)

    def _default(self, words: tuple[int, ...], info: int, size: int, signal: bool, at: int) -> Rule:
        arch, index = self._arch, self._index
        cfa_reg = arch.sp if info & 1 else arch.fp
        rest = words[1:]
        if index.fixed_ra:
            ra = RegRule(RegKind.AT_CFA, index.fixed_ra)
        else:
            ra = self._saved(rest[0], at) if rest and rest[0] else self._in_link_register(at)
            rest = rest[1:]
        fp = self._saved(rest[0], at) if rest else self._default_fp()
        return self._done(Rule(cfa_reg, self._cfa_offset(words[0]), ra), fp, info, signal)

    def _flex(self, words: tuple[int, ...], info: int, size: int, signal: bool, at: int) -> Rule:
        entities: list[tuple[int, int] | None] = []  # (control, offset) of cfa, ra, fp; None: its default place
        left = list(words)
        while left and len(entities) < 3:
            control = left.pop(0) & ((1 << 8 * size) - 1)
            if control and not left:
                raise FormatError(self._section, at, "control word without its offset word")
            entities.append((control, left.pop(0)) if control else None)
        entities += [None] * (3 - len(entities))
        cfa, ra, fp = entities
        if cfa is None or not cfa[0] & FLEX_REGISTER:
            raise FormatError(self._section, at, "cfa without base register")
        if ra is not None:
            ra_rule = self._flexible(*ra, at)
        elif self._index.fixed_ra:
            ra_rule = RegRule(RegKind.AT_CFA, self._index.fixed_ra)
        else:
            ra_rule = self._in_link_register(at)
        fp_rule = self._default_fp() if fp is None else self._flexible(*fp, at)
        number, deref, offset = self._number(cfa[0], at), bool(cfa[0] & FLEX_DEREF), self._cfa_offset(cfa[1])
        column = self._arch.dwarf.get(number, -1)
        expr = b""
        if column < 0:
            expr = encode_register_plus(number, offset)
            expr = encode_deref(expr) if deref else expr
        rule = Rule(column, 0 if expr else offset, ra_rule, cfa_deref=deref and not expr, cfa_expr=expr)
        return self._done(rule, fp_rule, info, signal)

    def _done(self, rule: Rule, fp: RegRule | None, info: int, signal: bool) -> Rule:
        regs = self._lost if fp is None else (*self._lost, (self._arch.fp, fp))
        pac = bool(info & 0x80)
        return Rule(rule.cfa_reg, rule.cfa_off, rule.ra, regs, rule.cfa_deref, rule.cfa_expr, signal, pac)

    def _cfa_offset(self, word: int) -> int:
        return word * S390X_CFA_SCALE + S390X_CFA_ADJUSTMENT if self._s390x else word

    def _default_fp(self) -> RegRule | None:
        return RegRule(RegKind.AT_CFA, self._index.fixed_fp) if self._index.fixed_fp else None

    def _in_link_register(self, at: int) -> RegRule:
        if self._arch.lr < 0:
            raise FormatError(self._section, at, "return address neither fixed nor tracked, and no link register")
        return RegRule(RegKind.REG_PLUS, 0, self._arch.lr)

    def _saved(self, word: int, at: int) -> RegRule:
        """Return the register rule for a word of ra or fp in a DEFAULT row of SFrame.

        The word is an offset from the CFA, or a register on s390x before V3.
        """
        if self._encoded_registers and word & 1:
            return self._register(word >> 1, 0, False, at)
        return RegRule(RegKind.AT_CFA, word)

    def _flexible(self, control: int, offset: int, at: int) -> RegRule:
        deref = bool(control & FLEX_DEREF)
        if control & FLEX_REGISTER:
            return self._register(self._number(control, at), offset, deref, at)
        return RegRule(RegKind.AT_CFA if deref else RegKind.CFA_PLUS, offset)

    def _number(self, control: int, at: int) -> int:
        number = control >> FLEX_NUMBER_SHIFT
        if number > MAX_DWARF_REGISTER:
            raise FormatError(self._section, at, f"register {number} is unknown")
        return number

    def _register(self, number: int, offset: int, deref: bool, at: int) -> RegRule:
        if number < 0:
            raise FormatError(self._section, at, f"register {number} is unknown")
        column = self._arch.dwarf.get(number)
        if column is None:  # samples lack it (a floating-point register): write a DWARF expression, which fails
            return RegRule(RegKind.AT_EXPR if deref else RegKind.EXPR, expr=encode_register_plus(number, offset))
        return RegRule(RegKind.AT_REG if deref else RegKind.REG_PLUS, offset, column)
