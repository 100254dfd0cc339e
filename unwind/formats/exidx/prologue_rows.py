"""Rows inside a function's prologue and epilogues, which EXIDX does not describe.

The table's rule holds once the frame is complete: at every call. A sample's innermost frame may be anywhere, one time
in ten where the frame is built or removed. Few instructions do that, and the table gives the frame size to which they
must add up. If the code adds up to that size, rows are made from it. Otherwise the table's rule holds for the whole
function.

    depth d = cfa - sp: 0 at the function's start
    cfa = sp + d;  registers that the table has at [cfa - n]: there if n <= d, else still (or again) in the register
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.model.arch import Arch
from pyprof.unwind.formats.exidx.arm_instructions import Decoder, Effect, Insn
from pyprof.unwind.rules import RegKind, RegRule, Rule

MAX_CODE = 1 << 14
"""Maximum number of bytes of an ARM function that are examined for prologues and epilogues."""
MODE_CODE = 1 << 9
"""Number of bytes of an ARM prologue by which A32 and T32 are told apart."""
MAX_PROLOGUE, MAX_EPILOGUE = 256, 64
"""Maximum sizes in bytes of the ARM code that builds a frame and of the code that removes it."""

Rows = tuple[tuple[int, ...], tuple[Rule, ...]]
"""Unwind rows (starts, rules) as in FunctionRows."""

Spans = dict[int, tuple[int, Rule]]
"""Spans of code with their unwind rule: (end, rule) by start; start and end are file addresses (svma)."""


class RowReader:
    """A maker of the unwind rows of one file's functions, from their EXIDX entries and code."""

    def __init__(self, arch: Arch, read: Callable[[int, int], bytes]) -> None:
        self._sp, self._lr = arch.sp, arch.lr
        self._read = read
        self._decoder = Decoder()

    def rows(self, rule: Rule, start: int, end: int) -> Rows:
        """Return the unwind rows of an ARM function, with its prologue and epilogues.

        Args:
            rule: The rule of the table.
            start: File address (svma) of the function.
            end: Address after it.
        """
        alone: Rows = (start,), (rule,)
        if rule.cfa_deref or rule.cfa_reg < 0 or rule.signal or (rule.cfa_reg == self._sp and not rule.cfa_off):
            return alone
        if any(how.kind is not RegKind.AT_CFA for _, how in rule.regs):
            return alone
        code = self._read(start, min(end - start, MAX_CODE))
        tried = [(thumb, self._sweep(code[:MODE_CODE], start, thumb)) for thumb in (True, False)]
        known = [(thumb, insns, spans) for thumb, insns in tried if (spans := self._prologues(rule, start, insns))]
        if len(known) != 1:  # not a compiler's code, or valid as both A32 and T32: the index does not say which
            return alone
        ((thumb, insns, spans),) = known
        if len(code) > MODE_CODE:
            insns = self._sweep(code, start, thumb)
            spans = self._prologues(rule, start, insns)
        for last, insn in enumerate(insns):
            if insn.effect is Effect.LEAVE:
                spans.update(self._epilogue(rule, start, insns, last))
        return _merged(rule, start, end, spans)

    def _sweep(self, code: bytes, start: int, thumb: bool) -> list[Insn]:
        return self._decoder.decode_block(code, start, thumb)

    def _prologues(self, rule: Rule, start: int, insns: list[Insn]) -> Spans:
        """Return the code spans of all prologues of an EXIDX entry, {} if there is none. An entry may cover several
        functions.
        """
        found: Spans = {}
        early: list[int] = []  # paths that return before a frame is begun
        first = 0
        while first < len(insns):
            spans = self._prologue(rule, start, insns, first)
            if spans:
                for position in early:
                    found |= self._at_depths(rule, start, insns, position, [0])
                found |= spans
                early.clear()
            last = first
            while last < len(insns) and insns[last].effect is not Effect.LEAVE:
                last += 1
            if not found and last == first:
                early.append(first)
            first = last + 1
        return found

    def _prologue(self, rule: Rule, start: int, insns: list[Insn], first: int) -> Spans:
        """Return the code spans of a prologue up to the instruction that completes the frame.

        The result is {} if the code does not add up to the frame size.
        """
        begin, depth = _span(start, insns, first)[0], 0
        depths: list[int] = []
        for position in range(first, len(insns)):
            insn = insns[position]
            if insn.at + insn.size - begin > MAX_PROLOGUE:
                return {}
            depths.append(depth)
            if insn.effect is Effect.MOVE:
                if insn.n > 0:
                    return {}
                depth -= insn.n
                if rule.cfa_reg == self._sp and depth >= rule.cfa_off:
                    return self._at_depths(rule, start, insns, first, depths) if depth == rule.cfa_off else {}
            elif insn.effect is Effect.FRAME:
                if insn.reg == rule.cfa_reg:
                    if depth - insn.n != rule.cfa_off:
                        return {}
                    spans = self._at_depths(rule, start, insns, first, depths)
                    return self._pushed_later(rule, insns, position, depth, spans)
            elif insn.effect is not Effect.RAISE:
                return {}
        return {}

    def _at_depths(self, rule: Rule, start: int, insns: list[Insn], first: int, depths: list[int]) -> Spans:
        """Return the code spans of the instructions from the first one on, given the depth of the stack before each."""
        spans: Spans = {}
        for position, depth in enumerate(depths, first):
            begin, after = _span(start, insns, position)
            spans[begin] = after, self._at_depth(rule, self._sp, depth)
        return spans

    def _pushed_later(self, rule: Rule, insns: list[Insn], frame: int, depth: int, spans: Spans) -> Spans:
        """Return the code spans of a prologue that sets its frame register before it pushes its last registers.

        Clang pushes r8 to r11 so in T32.

        Args:
            rule: The rule of the table.
            insns: The instructions.
            frame: Position of the instruction that sets the frame register.
            depth: The depth of sp there.
            spans: The spans up to there, which are extended.
        """
        for position in range(frame + 1, len(insns)):
            insn = insns[position]
            begin, after = insns[position - 1].at + insns[position - 1].size, insn.at + insn.size
            waits = any(-how.n > depth for _, how in rule.regs)
            if not waits or insn.effect is not Effect.MOVE or insn.n > 0 or after - insns[frame].at > MAX_PROLOGUE:
                break
            regs = tuple((column, how) for column, how in rule.regs if -how.n <= depth)
            spans[begin] = after, rule._replace(regs=regs)
            depth -= insn.n
        return spans

    def _epilogue(self, rule: Rule, start: int, insns: list[Insn], last: int) -> Spans:
        """Return the code spans of the instructions that remove the frame before an instruction that leaves the
        function.

        A return leaves nothing on the stack, so each instruction before it is certain. A branch is a tail call only if
        the instructions before it remove the whole frame. Otherwise the result is {}.
        """
        end, by_sp = insns[last], rule.cfa_reg == self._sp
        spans: Spans = {}
        sure = spans if end.n or end.reg == self._lr else {}
        depth, raised = 0, -1  # raised: the cfa's distance from the frame register from which sp was set
        for position in range(last, -1, -1):
            insn = insns[position]
            if end.at - insn.at > MAX_EPILOGUE:
                return sure
            if position != last and insn.effect in (Effect.CALL, Effect.LEAVE, Effect.UNKNOWN):
                return sure
            if raised >= 0:
                if insn.effect is Effect.RAISE and insn.reg == rule.cfa_reg:
                    return spans if raised + insn.n == rule.cfa_off else sure
            elif insn.effect is Effect.BACK:
                if insn.reg != rule.cfa_reg:
                    return sure
                raised = depth + insn.n
                if raised == rule.cfa_off:
                    return spans
            elif insn.effect in (Effect.MOVE, Effect.LEAVE):
                if insn.n < 0:
                    return sure
                depth += insn.n
                if by_sp and depth == rule.cfa_off:
                    return spans
            begin, after = _span(start, insns, position)
            begin = max(begin, end.at - MAX_EPILOGUE)
            state = self._at_depth(rule, rule.cfa_reg, raised) if raised >= 0 else self._at_depth(rule, self._sp, depth)
            spans[begin] = after, state
        return sure

    def _at_depth(self, rule: Rule, base: int, depth: int) -> Rule:
        """Return the unwind rule of a function at a place where cfa = base + depth.

        Registers whose slot lies below sp are not saved there yet, or no longer.
        """
        whole = base != self._sp
        regs = tuple((column, how) for column, how in rule.regs if whole or -how.n <= depth)
        saved = rule.ra.kind is RegKind.AT_CFA and (whole or -rule.ra.n <= depth)
        return Rule(base, depth, rule.ra if saved else RegRule(RegKind.REG_PLUS, 0, self._lr), regs)


def _span(start: int, insns: list[Insn], position: int) -> tuple[int, int]:
    """Return (end of the instruction before, end of this one), the span for which a rule holds. Nothing changes sp in
    between.
    """
    before = insns[position - 1] if position else None
    insn = insns[position]
    return (before.at + before.size if before else start), insn.at + insn.size


def _merged(rule: Rule, start: int, end: int, spans: Spans) -> Rows:
    """Return unwind rows with the spans of prologues and epilogues, and with the table's rule everywhere else."""
    starts: list[int] = []
    rules: list[Rule] = []

    def add(at: int, state: Rule) -> None:
        if not rules or rules[-1] != state:
            starts.append(at)
            rules.append(state)

    reached = start
    for begin, (after, state) in sorted(spans.items()):
        if begin < reached:
            continue
        if begin > reached:
            add(reached, rule)
        add(begin, state)
        reached = after
    if reached < end:
        add(reached, rule)
    return tuple(starts), tuple(rules)
