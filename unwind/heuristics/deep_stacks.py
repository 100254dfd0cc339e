"""Walks of stacks that are longer than the part that was copied.

The inner part of a stack is walked in the sample's own copy. The outer part is walked once, in memory that was read
while the thread ran. All later samples whose memory agrees with that walk share its frames.

DeepStacks.walk() takes a sample, its rules and the rest of its stack (model.sample_batch.StackBeyondCopy).
It compares the walk with the known chain, an earlier complete walk of the same thread:

* The walk joins the known chain at a frame with the same pc and sp, and the same fp if the known chain needs it.
* All words that the known chain reads from there on must be unchanged. The words that were read with the sample are
  compared: those of the sample's copy, and those of parts of the rest.
* Each word at which the known chain does not repeat itself must be among them (deep_stack_reuse.py). Otherwise the walk
  is cut, and it names such a word, so that the next sample reads it.
* Repeated frames between these parts are not proved to be unchanged. So shared frames have the trust COMPLETED.

If the rest is the memory at the time of the sample (StackBeyondCopy.exact), it is walked with the copy as one stack.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import replace
from pyprof.model.arch import Arch
from pyprof.model.sample_batch import OuterStack, Piece, SampleBatch, StackBeyondCopy, StackSlab
from pyprof.model.unwind_result import SharedFrames, StackEnd, Trust
from pyprof.unwind.heuristics.deep_stack_reuse import (
    DeepStackReuse,
    FramePath,
    Join,
    find_highest_difference,
    find_highest_unread,
    find_join,
    find_unpredicted,
    mask_needed_frames,
    slice_frames,
)
from pyprof.unwind.native_unwinder import OUTERMOST_RULE, UNKNOWN, FrameRun
from pyprof.unwind.reference_unwinder import LaneWalk, ReferenceUnwinder, Registers
from pyprof.unwind.rule_cache import CFA_FP, FP_SAVED, RuleTable
from pyprof.unwind.sample_memory import LaneMemory

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Follow = Callable[[npt.NDArray[np.unsignedinteger], tuple[int, int, int, int], int], FrameRun]
"""Function that finds the callers of a frame by the simplest rules, as NativeWalker.follow_rules() does: memory as
words; address of the first word, and pc, sp and fp of the frame; maximum number of callers.
"""

_INNER = 32
"""Number of frames of a deep stack that the reference unwinder walks before native code continues. The same number is
walked wherever native code lacks a rule.
"""
_MAX_SCALAR = 1 << 14
_MAX_THREADS = 64
_FIRST_RUN = 256
_RENEW, _RENEW_EXACT = 4096, 256
"""Minimum number of frames that a complete walk finds in the sample's own memory before it replaces the thread's
earlier walk. _RENEW_EXACT is for samples that have the exact rest of the stack, _RENEW for others.
"""


class _Noting(LaneMemory):
    """The memory of a sample, which records the addresses of all words that the unwinder reads from it."""

    def __init__(self, batch: SampleBatch, lane: int, more: tuple[Piece, ...] = ()) -> None:
        super().__init__(batch, lane)
        self._pieces += more
        self.asked: set[int] = set()

    def word(self, avma: int) -> int | None:
        self.asked.add(avma)
        return super().word(avma)

    def read(self, avma: int, size: int) -> int | None:
        self.asked.update(range(avma, avma + size, 4))
        return super().read(avma, size)


class DeepStacks:
    """The last complete walk of each thread with a deep stack in one address space, and walks that reuse them."""

    def __init__(self, arch: Arch, follow_rules: Follow | None, table: RuleTable) -> None:
        """Create an empty cache of walks.

        Args:
            arch: The architecture.
            follow_rules: Follows the simplest rules. Without it the reference unwinder walks up to _MAX_SCALAR frames.
            table: All rules.
        """
        self._arch = arch
        self._follow_rules = follow_rules
        self._table = table
        self._known: dict[int, DeepStackReuse] = {}
        self._tried: dict[int, int] = {}
        self._version = (0, 0)

    def renew(self, version: tuple[int, int]) -> None:
        """Drop all cached walks of deep stacks if the unwind rules have changed.

        Args:
            version: A number that changes whenever rules may have changed.
        """
        if version != self._version:
            self._version = version
            self._known.clear()
            self._tried.clear()

    def walk(self, batch: SampleBatch, lane: int, registers: Registers, walker: ReferenceUnwinder) -> LaneWalk:
        """Unwind a sample whose stack is longer than its copy, or whose copy is so long that walks of the thread are
        reused.
        """
        beyond = batch.stack.beyond.get(lane)
        if beyond is not None and beyond.exact:
            return self._walk(_assemble(batch, lane, beyond), 0, registers, walker, _RENEW_EXACT)
        if beyond is None or not beyond.spots or not self._is_new(batch, lane, beyond.outer):
            return self._walk(batch, lane, registers, walker)
        walk = self._bridged(batch, lane, registers, walker, beyond.spots[-1])
        if walk.end is StackEnd.ROOT:
            return walk
        if beyond.outer is None:
            self._tried[int(batch.tid[lane])] = 0
        return self._walk(batch, lane, registers, walker)

    def _is_new(self, batch: SampleBatch, lane: int, outer: OuterStack | None) -> bool:
        """Return True if the outer part of a sample's stack differs from the one that was last tried for its thread."""
        return self._tried.get(int(batch.tid[lane])) != (outer.number if outer is not None else 0)

    def _walk(
        self, batch: SampleBatch, lane: int, registers: Registers, walker: ReferenceUnwinder, renew: int = _RENEW
    ) -> LaneWalk:
        """Unwind a sample of a deep stack with the frames of an earlier complete walk of the thread.

        Args:
            batch: The batch.
            lane: Index of the sample.
            registers: Registers of the sample's innermost frame.
            walker: The reference unwinder.
            renew: Number of new frames from which on this walk replaces the earlier one.
        """
        tid = int(batch.tid[lane])
        beyond = batch.stack.beyond.get(lane)
        outer, spots = (beyond.outer, beyond.spots) if beyond is not None else (None, ())
        sample, number = (batch, lane), 0
        high = int(batch.stack.base[lane]) + _words(batch, lane).nbytes
        if outer is not None and self._is_new(batch, lane, outer) and outer.avma <= high <= outer.end:
            self._tried[tid] = number = outer.number
            batch, lane = _over(batch, lane, outer), 0
        known = self._known.get(tid)
        low, hidden = (None, 0) if known is None else self._agrees(known, batch, lane)
        memory = _Noting(batch, lane)
        walk, path = self._follow(registers, memory, walker, _words(batch, lane), None if low is None else known, low)
        walk.missing = max(walk.missing, hidden if walk.end is StackEnd.UNREADABLE else 0)
        if path is None:
            return walk
        own = len(path) if path.join_cached is None else path.join_cached.own
        if walk.end is StackEnd.ROOT and (number or (outer is None and own > renew)):
            known = self._remember(tid, path, walk, memory, _words(batch, lane), number)
            if outer is not None:
                hidden = find_highest_unread(known.unpredicted, high, spots)
                if hidden or not self._as_at_stop(known, spots):
                    return self._cut(*sample, registers, walker, hidden)
            own = min(own, _INNER)
            path.join_cached = Join(known, own, own)
        walk.tail = path.first_frames(own)
        if path.join_cached is not None:
            frames, at = path.join_cached.known.frames, path.join_cached.at
            if own + len(frames) - at <= walker.max_depth:
                walk.shared = frames, at
            else:
                walk.end = StackEnd.DEPTH
                walk.tail = walk.tail.followed_by(slice_frames(frames, at, at + max(walker.max_depth - own, 0)))
        return walk

    def _bridged(
        self, batch: SampleBatch, lane: int, registers: Registers, walker: ReferenceUnwinder, begin: Piece
    ) -> LaneWalk:
        """Unwind a sample with its stack copy and the memory at the beginning of the stack, which was read with the
        sample.

        One frame may be so large that its caller's frame lies at the beginning of the stack.
        """
        walk, path = self._follow(registers, _Noting(batch, lane, (begin,)), walker, _words(batch, lane), None, None)
        if path is not None:
            walk.tail = path.first_frames(len(path))
        return walk

    def _agrees(self, known: DeepStackReuse, batch: SampleBatch, lane: int) -> tuple[int | None, int]:
        """Compare an earlier walk of a thread with the words that were read with a sample.

        Returns:
            Two values. First, the address from which on all compared words are unchanged, or None if the walk cannot be
            used. Second, the address of a word that must be read to decide, or 0.
        """
        memory = LaneMemory(batch, lane)
        differs = find_highest_difference(known.slots, known.values, memory.low, _words(batch, lane))
        if memory.high < known.top:
            beyond = batch.stack.beyond.get(lane)
            if beyond is None or beyond.outer is None or beyond.outer.number != known.number:
                return None, 0
            if not self._as_at_stop(known, beyond.spots):
                return None, 0
            hidden = find_highest_unread(known.unpredicted, memory.high, beyond.spots)
            if hidden:
                return None, hidden
        return max(memory.low, differs + self._arch.word), 0

    def _as_at_stop(self, known: DeepStackReuse, spots: tuple[Piece, ...]) -> bool:
        """Return True if the words that were read at the time of a sample equal those that an earlier walk of its
        thread has read.

        Args:
            known: The earlier walk.
            spots: The pieces of memory that were read with the sample. Without any, the result is False.
        """
        word = self._arch.word
        return bool(spots) and all(
            find_highest_difference(
                known.slots,
                known.values,
                spot.avma,
                np.frombuffer(spot.data, f"u{word}", len(spot.data) // word),
            )
            < 0
            for spot in spots
        )

    def _cut(
        self, batch: SampleBatch, lane: int, registers: Registers, walker: ReferenceUnwinder, hidden: int
    ) -> LaneWalk:
        """Unwind a sample with only its own stack copy, so that its stack is truncated where the copy ends.

        Args:
            batch: The batch.
            lane: Index of the sample.
            registers: Registers of the sample's innermost frame.
            walker: The reference unwinder.
            hidden: Address of a word that should be read with the next sample, or 0.
        """
        walk, path = self._follow(registers, _Noting(batch, lane), walker, _words(batch, lane), None, None)
        walk.missing = max(walk.missing, hidden if walk.end is StackEnd.UNREADABLE else 0)
        if path is not None:
            walk.tail = path.first_frames(len(path))
        return walk

    def _follow(
        self,
        registers: Registers,
        memory: _Noting,
        walker: ReferenceUnwinder,
        words: npt.NDArray[np.unsignedinteger],
        known: DeepStackReuse | None,
        low: int | None,
    ) -> tuple[LaneWalk, FramePath | None]:
        """Unwind a sample to the end of its memory, or until the walk joins an earlier walk of the thread.

        Args:
            registers: Registers of the innermost frame.
            memory: Memory of the sample.
            walker: The reference unwinder.
            words: The memory as words.
            known: The earlier walk, or None.
            low: Lowest address at which the walk may join the earlier walk, or None.

        Returns:
            The walk and its path. If the path is None, the walk is complete.
        """
        arch, fp = self._arch, self._arch.fp
        inner = replace(walker, max_depth=_INNER)
        walk = inner.walk(registers, memory, keep_registers=True)
        if walk.end is not StackEnd.DEPTH or walk.registers is None or walk.registers[-1].exact:
            return (walker.walk(registers, memory) if walk.end is StackEnd.DEPTH else walk), None
        path = FramePath(walk, fp)
        result = LaneWalk([], top=walk.top)
        asked, by_scalar, checked = _FIRST_RUN, 0, 1
        while True:
            if known is not None and low is not None:
                path.join_cached = find_join(known, low, memory.high, path, checked)
                checked = len(path)
            if path.join_cached is not None:
                result.end, result.top = StackEnd.ROOT, known.top if known else 0
                return result, path
            if len(path) >= walker.max_depth or by_scalar > _MAX_SCALAR:
                result.end = StackEnd.DEPTH if len(path) >= walker.max_depth else StackEnd.NO_RULE
                return result, path
            pc, sp, last_fp, _ = path.state()
            result.top = max(result.top, sp if sp <= memory.high else 0)
            asked = min(2 * asked, walker.max_depth - len(path))
            if self._follow_rules is not None:
                run = self._follow_rules(words, (memory.low, pc, sp, last_fp), asked)
                path.add_run(run, self._table)
                if run.root:
                    result.end = StackEnd.ROOT
                    result.top = max(result.top, path.top if path.top <= memory.high else 0)
                    return result, path
                if len(run) == asked:
                    continue
            pc, sp, last_fp, _ = path.state()
            called_pc, _, _, called_exact = path.state(2)
            values: list[int | None] = [None] * len(arch.registers)
            values[arch.pc], values[arch.sp], values[fp] = pc, sp, None if last_fp == UNKNOWN else last_fp
            part = LaneWalk([], registers=[])
            walker.append_callers(part, Registers(values, False, called=called_pc - (not called_exact)), memory, _INNER)
            by_scalar += len(part.frames)
            if part.registers is not None:
                path.add_walk(part, fp)
                path.last = -1
            if part.end is not StackEnd.DEPTH or not part.registers or part.registers[-1].exact:
                result.end, result.missing, result.top = part.end, part.missing, max(result.top, part.top)
                if part.end is StackEnd.DEPTH:
                    result.end = StackEnd.NO_RULE
                return result, path

    def _remember(
        self,
        tid: int,
        path: FramePath,
        walk: LaneWalk,
        memory: _Noting,
        words: npt.NDArray[np.unsignedinteger],
        number: int,
    ) -> DeepStackReuse:
        """Store a complete walk of a deep stack for later walks of its thread.

        Args:
            tid: The thread.
            path: The frames of the walk.
            walk: Result of the walk.
            memory: The memory that the walk has read.
            words: That memory as words.
            number: Number of the OuterStack that provided the memory, 0 if it was a copy of one moment.
        """
        join, table, word = path.join_cached, self._table, self._arch.word
        own = len(path) if join is None else join.own
        _, sps, fps, _, _, rules = path.columns_since(0)
        rule = rules[1 : own + 1] if join is not None else np.append(rules[1:], path.last)
        plain, flags = rule >= 0, table.flags[rule]
        uses = np.where(plain, (flags & CFA_FP) != 0, rule != OUTERMOST_RULE)
        saves = plain & ((flags & FP_SAVED) != 0)
        needs_after = bool(join.known.needs_fp[join.at]) if join is not None else False
        needs = mask_needed_frames(uses, saves, needs_after)
        above = np.append(sps[1:own], sps[own] if join is not None else np.uint64(path.top))
        cfa = above - np.uint64(self._arch.sp_off & 0xFFFFFFFFFFFFFFFF)
        restored = saves & np.append(needs[1:], needs_after)
        slots = np.concatenate(
            [
                (cfa + table.ra_off[rule])[plain],
                (cfa + table.fp_off[rule])[restored],
                np.array(sorted(memory.asked), np.uint64) & np.uint64(-word & 0xFFFFFFFFFFFFFFFF),
            ]
        )
        low, high = np.uint64(memory.low), np.uint64(memory.low + words.nbytes - word)
        slots = np.sort(slots[(slots >= low) & (slots <= high)], kind="stable")
        slots = slots[np.append(True, slots[1:] != slots[:-1])]
        values = words[((slots - low) // np.uint64(word)).view(np.int64)].astype(np.uint64, copy=False)
        inner, fp = path.first_frames(own), fps[:own]
        top, before = walk.top, None
        if join is not None:
            known, at = join.known, join.at
            frames, top, before = known.frames, known.top, (known.frames, at, own)
            beyond = slice(int(np.searchsorted(known.slots, frames.sp[at])), None)
            kept = slots < frames.sp[at]
            slots = np.concatenate([slots[kept], known.slots[beyond]])
            values = np.concatenate([values[kept], known.values[beyond]])
            fp, needs = np.append(fp, known.fp[at:]), np.append(needs, known.needs_fp[at:])
            inner = inner.followed_by(slice_frames(frames, at, len(frames)))
        trust = np.full(len(inner), Trust.COMPLETED, np.uint8) if number else inner.trust
        shared = SharedFrames(inner.pc, inner.exact, trust, inner.sp, before)
        if tid not in self._known and len(self._known) >= _MAX_THREADS:
            self._known.clear()
        found = DeepStackReuse(
            shared, fp, needs, slots, values, find_unpredicted(inner.pc, inner.sp, slots), top, number
        )
        self._known[tid] = found
        return found


def _words(batch: SampleBatch, lane: int) -> npt.NDArray[np.unsignedinteger]:
    """Return a sample's stack copy as an array of words, without copying it."""
    stack, word = batch.stack, batch.arch.word
    offset, size = int(stack.offset[lane]), int(stack.size[lane])
    return stack.data[offset : offset + (size & -word)].view(f"u{word}")


def _assemble(batch: SampleBatch, lane: int, beyond: StackBeyondCopy) -> SampleBatch:
    """Return a batch with one sample, in which the stack copy is followed by the exact rest of the stack."""
    own, outer, base = _words(batch, lane), beyond.outer, int(batch.stack.base[lane])
    assert outer is not None
    whole = np.empty(outer.end - base, np.uint8)
    high = base + own.nbytes
    whole[: own.nbytes] = own.view(np.uint8)
    whole[own.nbytes :] = outer.words.view(np.uint8)[high - outer.avma :]
    for spot in beyond.spots:
        whole[spot.avma - base : spot.avma - base + len(spot.data)] = np.frombuffer(spot.data, np.uint8)
    return _replace_copy(batch, lane, whole)


def _over(batch: SampleBatch, lane: int, outer: OuterStack) -> SampleBatch:
    """Return a batch with one sample of a deep stack, in which the stack copy is followed by the outer part that was
    read earlier.
    """
    own, at = _words(batch, lane), int(batch.stack.base[lane]) - outer.avma
    rest = outer.words[(at + own.nbytes) // own.itemsize :]
    same = at == 0 and np.array_equal(own, outer.words[: len(own)])
    data = (outer.words if same else np.concatenate([own, rest])).view(np.uint8)
    return _replace_copy(batch, lane, data)


def _replace_copy(batch: SampleBatch, lane: int, data: npt.NDArray[np.uint8]) -> SampleBatch:
    """Return a batch with a single sample of another batch, whose stack copy is replaced by `data`."""
    one = np.array([lane], np.int64)
    stack = StackSlab(data, batch.stack.base[one], np.zeros(1, np.int64), np.array([len(data)], np.int64))
    return replace(batch.take_samples(one), stack=stack)
