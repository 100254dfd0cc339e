"""The walk of one sample, frame by frame, by fast rules (interned_rules.py).

A frame costs some hundred nanoseconds, where scalar.py takes microseconds. The repeated frames of a recursion are found
all at once. It serves stacks of hundreds of thousands of frames, and processes with few samples in a batch.

PlainRules.follow_rules() takes pc, sp and fp of a frame and memory as words. It returns those of the callers, and the
rule that found each. The formulas are those of scalar.apply_rule, which is the specification. Every other case is left
to it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.walk import StackEnd, Trust
from pyprof.records import dataclass
from pyprof.unwind.interned_rules import CFA_FP, FP_SAVED, OUTERMOST, RuleTable
from pyprof.unwind.rule_lookup import SpaceIndex
from pyprof.unwind.sample_memory import LaneMemory
from pyprof.unwind.scalar import CachedFrames, LaneWalk, NoCaller, Registers, ScalarWalker

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

UNKNOWN = (1 << 64) - 1
"""Value of fp in a frame whose frame pointer is unknown."""
OUTERMOST_RULE = -2
"""Rule id of a frame whose unwind rule says that it has no caller; no memory is read to find that out."""

MAX_RULES = 1 << 19
"""Maximum number of return addresses whose unwind rules are cached. A full cache is cleared."""

_MAX_PERIOD = 8
_LOOK = 64
"""Number of frames after which a walk first checks whether frames repeat. The interval doubles after each failure."""

_FIRST_BLOCK, _GROWTH = 256, 8
"""Number of repeated frames that are compared at once, and its growth factor while all of them are equal."""

_Plain = tuple[bool, int, int, int | None, int]
"""Fast unwind rule (use fp, cfa_off, ra_off, fp_off, rule id): cfa = fp + cfa_off if use fp, else sp + cfa_off.

fp_off is None if the register keeps the caller's value.
"""

_NO_RULE: _Plain = (False, 0, 0, None, -1)
_ROOT: _Plain = (False, 0, 0, None, OUTERMOST_RULE)


@dataclass(slots=True)
class FrameRun:
    """Consecutive callers of a frame, as columns.

    Attributes:
        pc: Return addresses, of shape (n,). sp and fp are the registers of the same frames.
        rule: Id of the rule that found each frame.
        root: True if the last frame has no caller.
        last: If root: the rule id that found the return address 0, or OUTERMOST_RULE.
        top: If root: the CFA of the last frame.
    """

    pc: U64
    sp: U64
    fp: U64
    rule: I64
    root: bool = False
    last: int = -1
    top: int = 0

    def __len__(self) -> int:
        return len(self.pc)


class PlainRules:
    """The fast unwind rules of one address space by return address: rules that compute the CFA as sp or fp plus an
    offset.
    """

    def __init__(self, arch: Arch, index: SpaceIndex, table: RuleTable) -> None:
        self._arch = arch
        self._index = index
        self._table = table
        self._rules: dict[int, _Plain] = {}

    def drop_rules(self) -> None:
        self._rules.clear()

    def _find(self, pc: int) -> _Plain:
        at = self._index.rule_id(pc - 1, False)
        flags = int(self._table.flags[at])
        if flags & OUTERMOST:
            found = _ROOT
        elif flags & ~(CFA_FP | FP_SAVED) or self._table.trust[at] == Trust.CODE:
            found = _NO_RULE
        else:
            cfa_off, ra_off, fp_off = (
                _signed(int(column[at])) for column in (self._table.cfa_off, self._table.ra_off, self._table.fp_off)
            )
            found = (bool(flags & CFA_FP), cfa_off, ra_off, fp_off if flags & FP_SAVED else None, at)
        self._rules[pc] = found
        return found

    def follow_rules(
        self, words: npt.NDArray[np.unsignedinteger], base: int, pc: int, sp: int, fp: int, max_frames: int
    ) -> FrameRun:
        """Return the callers of a frame whose pc is a return address.

        Args:
            words: Memory of the sample as words.
            base: Address of the first word in the process.
            pc: The frame's pc.
            sp: The frame's stack pointer.
            fp: The frame's frame pointer, or UNKNOWN.
            max_frames: Maximum number of callers.
        """
        arch = self._arch
        if len(self._rules) > MAX_RULES:
            self._rules.clear()
        known, find = self._rules.get, self._find
        word, sp_off, pc_mask = arch.word, arch.sp_off, arch.pc_mask
        shift, odd, size = word.bit_length() - 1, word - 1, len(words) * word
        view = words.data
        pcs, sps, fps, rules = [pc], [sp], [fp], [-1]
        done: list[tuple[U64, U64, U64, I64]] = []
        end = FrameRun(*_no_frames())
        left, look, patience = max_frames, _LOOK, _LOOK
        while left > 0:
            by_fp, cfa_off, ra_off, fp_off, rule = known(pc) or find(pc)
            if rule < 0:
                end.root, end.last, end.top = rule == OUTERMOST_RULE, rule, sp
                break
            if by_fp and fp == UNKNOWN:
                break
            cfa = (fp if by_fp else sp) + cfa_off
            at = cfa + ra_off - base
            if not 0 <= at < size or at & odd:
                break
            caller = view[at >> shift] & pc_mask
            callers_fp = fp
            if fp_off is not None:
                slot = cfa + fp_off - base
                if not 0 <= slot < size or slot & odd:
                    break
                callers_fp = view[slot >> shift]
            if caller == 0:
                end.root, end.last, end.top = True, rule, cfa
                break
            above = cfa + sp_off
            if above <= sp:
                break
            pc, sp, fp = caller, above, callers_fp
            pcs.append(pc)
            sps.append(sp)
            fps.append(fp)
            rules.append(rule)
            left -= 1
            look -= 1
            if look <= 0:
                more = self._repeated(words, base, pcs, sps, fps, rules, left)
                patience = _LOOK if more is not None else 2 * patience
                look = patience
                if more is not None:
                    done += [_columns(pcs, sps, fps, rules), more]
                    pc, sp, fp = (int(more[column][-1]) for column in range(3))
                    left -= len(more[0])
                    pcs, sps, fps, rules = [pc], [sp], [fp], [-1]
        found = _columns(pcs, sps, fps, rules)
        if done:
            end.pc, end.sp, end.fp = (np.concatenate([part[column] for part in (*done, found)]) for column in range(3))
            end.rule = np.concatenate([part[3] for part in (*done, found)])
        else:
            end.pc, end.sp, end.fp, end.rule = found
        return end

    def _repeated(
        self,
        words: npt.NDArray[np.unsignedinteger],
        base: int,
        pcs: list[int],
        sps: list[int],
        fps: list[int],
        rules: list[int],
        most: int,
    ) -> tuple[U64, U64, U64, I64] | None:
        """Return the next frames of a recursion: as long as they repeat the last few frames at equal distances on the
        stack. None if they do not.

        Frames are compared in blocks of growing size.
        """
        period, stride = self._period(pcs, sps, rules)
        parts = []
        block = _FIRST_BLOCK
        while period:
            asked = min(block, most) // period
            part = self._repeat(words, base, pcs, sps, fps, rules, period, stride, asked)
            if part is None:
                break
            parts.append(part)
            if len(part[0]) < asked * period:
                break
            most -= len(part[0])
            block *= _GROWTH
            last = -2 * period - 1
            pcs, sps, fps, rules = (
                [*old, *new[last:].tolist()][last:] for old, new in zip((pcs, sps, fps, rules), part, strict=True)
            )
        if not parts:
            return None
        pc, sp, fp = (np.concatenate([part[column] for part in parts]) for column in range(3))
        return pc, sp, fp, np.concatenate([part[3] for part in parts])

    def _period(self, pcs: list[int], sps: list[int], rules: list[int]) -> tuple[int, int]:
        """Return the length of the repetition that the last frames of a stack form, in frames and in bytes, or (0,
        0).
        """
        n = len(pcs)
        for period in range(1, min(_MAX_PERIOD, (n - 1) // 2) + 1):
            if pcs[-period:] == pcs[-2 * period : -period] and rules[-period:] == rules[-2 * period : -period]:
                stride = sps[-1] - sps[-1 - period]
                if stride % self._arch.word == 0 and all(
                    sps[at] - sps[at - period] == stride for at in range(n - period, n)
                ):
                    return period, stride
        return 0, 0

    def _repeat(
        self,
        words: npt.NDArray[np.unsignedinteger],
        base: int,
        pcs: list[int],
        sps: list[int],
        fps: list[int],
        rules: list[int],
        period: int,
        stride: int,
        most: int,
    ) -> tuple[U64, U64, U64, I64] | None:
        """Return the frames of at most `most` further periods of a recursion, or None if not even one period
        follows.
        """
        word, sp_off = self._arch.word, self._arch.sp_off
        step, n = stride // word, len(pcs)
        times = min(most, (len(words) * word + base - sps[-1]) // stride)
        if times <= 0:
            return None
        shape = (times, period)
        fp = np.empty(shape, np.uint64)
        distance = np.arange(1, times + 1, dtype=np.uint64) * np.uint64(stride)
        same = np.ones(times, np.bool_)
        column = np.append(np.uint64(fps[-1]), np.empty(times, np.uint64))  # fp of the frame before each
        saves = [self._rules[pcs[at - 1]][3] is not None for at in range(n - period, n)]
        last_save = max((at for at, saved in enumerate(saves) if saved), default=-1)

        def slots(address: int) -> npt.NDArray[np.unsignedinteger] | None:
            first = (address - base) // word + step
            found = words[first::step][:times] if first >= 0 else words[:0]
            return found if len(found) == times else None

        if last_save >= 0:
            at = n - period + last_save
            offset = self._rules[pcs[at - 1]][3]
            saved = slots(sps[at] - sp_off + (offset or 0))
            if saved is None:
                return None
            column[1:] = saved
        else:
            column[1:] = fps[-1]
        before = column[:-1]
        for place in range(period):
            at = n - period + place
            by_fp, _, ra_off, fp_off, _ = self._rules[pcs[at - 1]]
            cfa = sps[at] - sp_off
            returns = slots(cfa + ra_off)
            if returns is None:
                return None
            same &= (returns & words.dtype.type(self._arch.pc_mask)) == pcs[at]
            if by_fp:
                same &= before == np.uint64(fps[at - 1]) + distance
            if fp_off is not None:
                restored = slots(cfa + fp_off)
                if restored is None:
                    return None
                before = restored.astype(np.uint64, copy=False)
            fp[:, place] = before
        count = times if same.all() else int(np.argmin(same))
        if count == 0:
            return None
        sp = np.array(sps[-period:], np.uint64)[None, :] + distance[:count, None]
        pc = np.tile(np.array(pcs[-period:], np.uint64), count)
        rule = np.tile(np.array(rules[-period:], np.int64), count)
        return pc, sp.ravel(), fp[:count].ravel(), rule


@dataclass(frozen=True, slots=True)
class PlainWalker:
    """The unwinding of one sample at a time, for address spaces with few samples.

    It finds the frames that ScalarWalker.walk() finds.

    It steps the innermost frame with all registers, and its callers by fast rules with pc, sp and fp alone. Where these
    rules do not apply, the reference unwinder continues. If that needs another register, it restarts with all
    registers.

    Attributes:
        walker: The reference unwinder of the address space.
        rules: The fast rules of the address space.
        table: The table of all rules.
    """

    walker: ScalarWalker
    rules: PlainRules
    table: RuleTable

    def walk(self, registers: Registers, memory: LaneMemory, words: npt.NDArray[np.unsignedinteger]) -> LaneWalk:
        """Unwind the stack of a sample by fast rules (CFA from sp or fp).

        Args:
            registers: All registers of the innermost frame.
            memory: Memory of the sample.
            words: The stack copy as native words.
        """
        walker, arch = self.walker, self.walker.arch
        walker.budget.begin_stack()
        pc, sp = registers.values[arch.pc] or 0, registers.values[arch.sp] or 0
        outcome = walker.find_caller(walker.rules(pc, True), pc, registers, memory)
        if isinstance(outcome, NoCaller) or walker.max_depth < 2:
            return walker.walk(registers, memory)
        caller = outcome.registers
        caller.called = pc
        outer = caller.values[arch.pc] or 0, caller.exact, outcome.trust, caller.values[arch.sp] or 0
        top = max((at for at in (sp, outcome.cfa) if memory.holds(at)), default=0)
        walk = self.walk_callers(caller, memory, words, walker.max_depth - 2, top)
        if walk.needs >= 0 and walk.tail is not None:
            return walker.walk(registers, memory)
        walk.frames[:0] = [(pc, True, Trust.CONTEXT, sp), outer][: 2 - walk.no_frame]
        return walk

    def walk_callers(
        self,
        registers: Registers,
        memory: LaneMemory,
        words: npt.NDArray[np.unsignedinteger],
        max_frames: int,
        top: int,
    ) -> LaneWalk:
        """Return the callers of a frame, as far as fast rules (CFA from sp or fp) find them.

        Args:
            registers: Registers of the frame.
            memory: Memory of the sample.
            words: The stack copy as native words.
            max_frames: Maximum number of callers.
            top: Highest CFA inside the stack copy so far.
        """
        arch = self.walker.arch
        pc, sp, fp = (registers.values[column] for column in (arch.pc, arch.sp, arch.fp))
        run = None
        if pc is not None and sp is not None and not registers.exact:
            run = self.rules.follow_rules(words, memory.low, pc, sp, UNKNOWN if fp is None else fp, max_frames)
        walk = LaneWalk([], top=top)
        if run is None or not (len(run) or run.root):
            self.walker.append_callers(walk, registers, memory, max_frames)
            return walk
        walk.tail = CachedFrames(run.pc, np.zeros(len(run), np.bool_), self.table.trust[run.rule], run.sp)
        walk.top = max(top, self._top(run, memory))
        if run.root:
            walk.end = StackEnd.ROOT
        else:
            self._after(walk, run, registers, memory, max_frames)
        return walk

    def _top(self, run: FrameRun, memory: LaneMemory) -> int:
        """Return the highest CFA of these frames inside the stack copy. The root's CFA may lie anywhere."""
        last = run.top if run.root and memory.holds(run.top) else 0
        for sp in run.sp[::-1]:
            if memory.holds(cfa := int(sp) - self.walker.arch.sp_off):
                return max(last, cfa)
        return last

    def _after(self, walk: LaneWalk, run: FrameRun, first: Registers, memory: LaneMemory, most: int) -> None:
        """Continue the unwinding by the reference unwinder after frames that fast rules found."""
        arch, fp = self.walker.arch, int(run.fp[-1])
        values: list[int | None] = [None] * len(first.values)
        values[arch.pc], values[arch.sp], values[arch.fp] = (
            int(run.pc[-1]),
            int(run.sp[-1]),
            None if fp == UNKNOWN else fp,
        )
        callee = int(run.pc[-2]) if len(run) > 1 else first.values[arch.pc] or 0
        part = LaneWalk([], top=walk.top)
        self.walker.append_callers(part, Registers(values, False, called=callee - 1), memory, most - len(run))
        assert walk.tail is not None
        tail = walk.tail if not part.no_frame else walk.tail.frames_until(len(run) - 1)
        walk.tail = tail.followed_by(CachedFrames.from_frames(part.frames)) if part.frames else tail
        walk.end, walk.missing, walk.needs, walk.top = part.end, part.missing, part.needs, part.top


def _no_frames() -> tuple[U64, U64, U64, I64]:
    none = np.zeros(0, np.uint64)
    return none, none, none, np.zeros(0, np.int64)


def _columns(pcs: list[int], sps: list[int], fps: list[int], rules: list[int]) -> tuple[U64, U64, U64, I64]:
    """Return the lists of frame columns as arrays, without their first frame."""
    pc, sp, fp = np.array((pcs, sps, fps), np.uint64)[:, 1:]
    return pc, sp, fp, np.array(rules[1:], np.int64)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
