"""One unwind step of many samples at once: the caller of each sample's current frame, by fast rules (interned_rules).

step_lanes() takes Lanes (the registers of each sample's current frame), rule ids and the stack copies as words, and
returns Stepped. It follows only sp, fp and pc. A sample that needs more is marked SLOW. The formulas are those of
scalar.apply_rule, which is the specification.

Samples of one address space share its rules. But an agent's batch has a few samples of each of many processes, and a
step costs the same for a few samples as for a hundred. So samples of several address spaces are stepped together. Only
the lookup of a pc's rule depends on the address space (LaneSpaces).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.columns import distinct
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.model.walk import StackEnd
from pyprof.records import dataclass
from pyprof.unwind.interned_rules import (
    CFA_FP,
    FP_SAVED,
    FP_UNKNOWN,
    OUTERMOST,
    PAC,
    RA_LR,
    SIGNAL,
    SLOW,
    SP_SAVED,
    UNCOVERED,
    RuleTable,
)

if TYPE_CHECKING:
    from pyprof.unwind.one_sample_walk import PlainWalker
    from pyprof.unwind.rule_lookup import SpaceIndex

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

NO_CALLER = SLOW | UNCOVERED | OUTERMOST


@dataclass(slots=True)
class Words:
    """The stack copies of a batch as words in the target's byte order.

    words[first[i] + k] stands at base[i] + k * word.

    Attributes:
        words: The words of all copies.
        shift: Binary logarithm of the word size in bytes.
        misaligned: Mask of the address bits below a word.
        base: Address of each copy in the process.
        first: Index of each copy's first word.
        last: Greatest byte offset into each copy at which a whole word stands.
        whole: The copy has at least one word.
    """

    words: npt.NDArray[np.unsignedinteger]
    shift: np.uint64
    misaligned: np.uint64
    base: U64
    first: U64
    last: U64
    whole: Mask

    @classmethod
    def from_batch(cls, batch: SampleBatch) -> Words:
        """Return a batch's stack copies as words. No memory is copied."""
        arch, slab = batch.arch, batch.stack
        order = "<" if arch.byteorder == "little" else ">"
        data = slab.data[: len(slab.data) // arch.word * arch.word]
        return cls(
            words=data.view(np.dtype(f"{order}u{arch.word}")),
            shift=np.uint64(arch.word.bit_length() - 1),
            misaligned=np.uint64(arch.word - 1),
            base=slab.base,
            first=slab.offset.astype(np.uint64) // np.uint64(arch.word),
            last=np.maximum(slab.size - arch.word, 0).astype(np.uint64),
            whole=slab.size >= arch.word,
        )


@dataclass(slots=True)
class Lanes:
    """The current frames of samples whose stacks are being walked, as columns of shape (k,).

    Attributes:
        lane: Index of the sample in the batch.
        pc: Register value; sp, fp and lr likewise.
        fp_known: The value of fp is known; lr_known likewise.
        exact: The pc is not a return address.
        top: Highest CFA inside the stack copy so far.
        base: Address of the stack copy; first and last are as in Words.
    """

    lane: npt.NDArray[np.int64]
    pc: U64
    sp: U64
    fp: U64
    lr: U64
    fp_known: Mask
    lr_known: Mask
    exact: Mask
    top: U64
    base: U64
    first: U64
    last: U64

    @classmethod
    def start_lanes(cls, batch: SampleBatch, words: Words, lane: npt.NDArray[np.int64]) -> Lanes:
        """Return the innermost frames of some samples of a batch, at which their walk starts."""
        arch = batch.arch
        base, sp = words.base[lane], batch.regs[lane, arch.sp]
        stopped = batch.kind[lane] == SampleKind.STOPPED
        inside = sp - base <= batch.stack.size[lane].astype(np.uint64)
        return cls(
            lane=lane,
            pc=batch.regs[lane, arch.pc],
            sp=sp,
            fp=batch.regs[lane, arch.fp],
            lr=batch.regs[lane, arch.lr] if arch.lr >= 0 else np.zeros(len(lane), np.uint64),
            fp_known=stopped,
            lr_known=stopped & (arch.lr >= 0),
            exact=np.ones(len(lane), np.bool_),
            top=np.where(inside, sp, np.uint64(0)),
            base=base,
            first=words.first[lane],
            last=words.last[lane],
        )

    def select_lanes(self, which: Mask | npt.NDArray[np.int64]) -> Lanes:
        """Return the current frames of a selection of the walked samples, by mask or index."""
        at = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Lanes(
            self.lane.take(at),
            self.pc.take(at),
            self.sp.take(at),
            self.fp.take(at),
            self.lr.take(at),
            self.fp_known.take(at),
            self.lr_known.take(at),
            self.exact.take(at),
            self.top.take(at),
            self.base.take(at),
            self.first.take(at),
            self.last.take(at),
        )

    def __len__(self) -> int:
        return len(self.lane)


class LaneSpaces(Protocol):
    """The address spaces of samples whose stacks are stepped together. A lane is the index of a sample in the batch."""

    def rule_ids(self, lane: I64, pcs: U64, exact: Mask) -> I64:
        """Return the id of the unwind rule for each sample's lookup pc. All arrays have the shape (n,)."""
        ...

    def parts(self, lane: I64) -> Iterator[tuple[I64, SpaceIndex, PlainWalker]]:
        """Yield, for each address space, the positions in `lane` of its samples, its unwind rules and its walker."""
        ...


class OneSpace:
    """LaneSpaces of samples that are all in one address space."""

    def __init__(self, index: SpaceIndex, single: PlainWalker) -> None:
        self._index, self._single = index, single

    def rule_ids(self, lane: I64, pcs: U64, exact: Mask) -> I64:
        index = self._index
        if exact.any() and not exact.all():
            ids = np.zeros(len(pcs), np.int64)
            ids[exact] = index.rule_ids(pcs[exact], True)
            ids[~exact] = index.rule_ids(pcs[~exact], False)
            return ids
        return index.rule_ids(pcs, bool(exact[0]))

    def parts(self, lane: I64) -> Iterator[tuple[I64, SpaceIndex, PlainWalker]]:
        yield np.arange(len(lane)), self._index, self._single


class ManySpaces:
    """LaneSpaces of samples in several address spaces, with a few in each. Their unwind rules must not change
    meanwhile.
    """

    def __init__(self, lanes: int, members: Sequence[tuple[I64, SpaceIndex, PlainWalker]]) -> None:
        """Assign the samples of a batch to their address spaces.

        Args:
            lanes: Number of samples in the batch.
            members: (indexes into the batch, rules, walker) of each address space.
        """
        self._members = members
        self._number = np.zeros(lanes, np.int64)
        for number, (lane, _, _) in enumerate(members):
            self._number[lane] = number
        self._known: dict[tuple[int, int, bool], int] = {}

    def rule_ids(self, lane: I64, pcs: U64, exact: Mask) -> I64:
        known, found = self._known, []
        for key in zip(self._number[lane].tolist(), pcs.tolist(), exact.tolist(), strict=True):
            rule = known.get(key)
            if rule is None:
                number, pc, is_exact = key
                rule = known[key] = self._members[number][1].rule_id(pc, is_exact)
            found.append(rule)
        return np.array(found, np.int64)

    def parts(self, lane: I64) -> Iterator[tuple[I64, SpaceIndex, PlainWalker]]:
        of = self._number[lane]
        for number in distinct(of).tolist():
            _, index, single = self._members[number]
            yield np.flatnonzero(of == number), index, single


@dataclass(slots=True)
class Stepped:
    """The result of one unwind step of many samples, as columns of shape (k,).

    Attributes:
        end: StackEnd. RUNNING means that the Lanes now hold the caller.
        missing: Address of the word that an UNREADABLE sample needs.
        slow: The reference unwinder must walk the sample; the other columns mean nothing.
        uncovered: No table covers the pc; the fallback must find the caller.
        trust: Trust of the frame that was found.
    """

    end: npt.NDArray[np.uint8]
    missing: U64
    slow: Mask
    uncovered: Mask
    trust: npt.NDArray[np.uint8]


def step_lanes(lanes: Lanes, ids: npt.NDArray[np.int64], rules: RuleTable, words: Words, arch: Arch) -> Stepped:
    """Make one unwind step: replace the registers of each sample's frame by those of its caller.

    Samples that end, slow samples and uncovered samples keep top and lane. Uncovered samples keep all other columns
    too; those of the others mean nothing.
    """
    flags = rules.flags.take(ids)
    union = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
    none, mask = np.zeros(len(lanes), np.bool_), np.uint64(arch.mask)

    uncovered = (flags & UNCOVERED) != 0 if union & UNCOVERED else none
    stay = (flags & NO_CALLER) != 0 if union & NO_CALLER else none
    slow = (flags & SLOW) != 0 if union & SLOW else none.copy()

    base = lanes.sp
    if union & CFA_FP:
        by_fp = (flags & CFA_FP) != 0
        base = np.where(by_fp, lanes.fp, base)
        slow = slow | (by_fp & ~lanes.fp_known & ~stay)
    cfa = (base + rules.cfa_off.take(ids)) & mask

    ra, unreadable, misaligned, missing = load_words(cfa + rules.ra_off.take(ids), lanes, words, mask)
    if union & RA_LR:
        by_lr = (flags & RA_LR) != 0
        ra = np.where(by_lr, lanes.lr, ra)
        unreadable &= ~by_lr
        misaligned &= ~by_lr
        slow = slow | (by_lr & ~lanes.lr_known & ~stay)
    slow = slow | (misaligned & ~stay)

    fp, fp_known = lanes.fp, lanes.fp_known
    if union & FP_SAVED:
        slot = (cfa + rules.fp_off.take(ids)) & mask
        fp, fp_known, odd = _saved_fp(lanes, (flags & FP_SAVED) != 0, slot, words, mask)
        slow = slow | (odd & ~stay)
    if union & FP_UNKNOWN:
        fp_known = fp_known & ((flags & FP_UNKNOWN) == 0)

    pc = ra & np.uint64(arch.pc_mask)
    if union & PAC:
        pc = np.where((flags & PAC) != 0, pc & np.uint64(arch.mask & ~arch.pac_mask), pc)
    caller_sp = cfa if arch.sp_off == 0 else cfa + np.uint64(arch.sp_off & 0xFFFFFFFFFFFFFFFF) & mask
    if union & SP_SAVED:
        by_slot = (flags & SP_SAVED) != 0
        saved_sp, lost, odd, _ = load_words(cfa + rules.saved_sp_off.take(ids), lanes, words, mask)
        caller_sp = np.where(by_slot, saved_sp, caller_sp)
        slow = slow | (by_slot & (lost | odd) & ~stay)
    up = (caller_sp > lanes.sp) | ((caller_sp == lanes.sp) & lanes.exact)
    exact = (flags & SIGNAL) != 0 if union & SIGNAL else none
    up |= exact
    end = _ends(up, pc == 0, unreadable, stay, flags)
    inside = (cfa - lanes.base <= lanes.last + np.uint64(arch.word)) & ~stay
    lanes.top = np.where(inside, np.maximum(lanes.top, cfa), lanes.top)
    _go_up(lanes, uncovered, pc, caller_sp, fp, fp_known, exact)
    return Stepped(end, missing, slow, uncovered, rules.trust.take(ids))


def _go_up(lanes: Lanes, uncovered: Mask, pc: U64, sp: U64, fp: U64, fp_known: Mask, exact: Mask) -> None:
    """Store the registers of the callers that an unwind step has found. Samples whose frame no table covers keep their
    registers.
    """
    if uncovered.any():
        pc, sp = np.where(uncovered, lanes.pc, pc), np.where(uncovered, lanes.sp, sp)
        fp, fp_known = fp.copy(), fp_known.copy()  # the fallback writes into these columns
        exact = np.where(uncovered, lanes.exact, exact)
        lanes.lr_known = lanes.lr_known & uncovered
    else:
        lanes.lr_known = np.zeros(len(lanes), np.bool_)
    lanes.pc, lanes.sp, lanes.fp, lanes.fp_known, lanes.exact = pc, sp, fp, fp_known, exact


def _saved_fp(lanes: Lanes, saved: Mask, slot: U64, words: Words, mask: np.uint64) -> tuple[U64, Mask, Mask]:
    """Return (frame pointer, it is known, its slot is misaligned) of each sample, where unwind rules say that fp is
    saved.
    """
    value, lost, misaligned, _ = load_words(slot, lanes, words, mask)
    saved &= ~lost | (slot >= lanes.sp)  # popped: the register has the caller's value
    return np.where(saved, value, lanes.fp), np.where(saved, ~lost, lanes.fp_known), saved & misaligned


def _ends(up: Mask, root: Mask, unreadable: Mask, stay: Mask, flags: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Return for each sample why its stack ends in this unwind step (StackEnd), or RUNNING."""
    end = np.zeros(len(up), np.uint8)
    if not up.all():
        end[~up] = StackEnd.STUCK
    if root.any():
        end[root] = StackEnd.ROOT
    if unreadable.any():
        end[unreadable] = StackEnd.UNREADABLE
    if stay.any():
        end[stay] = StackEnd.RUNNING
        end[(flags & OUTERMOST) != 0] = StackEnd.ROOT
    return end


def load_words(avma: U64, lanes: Lanes, words: Words, mask: np.uint64) -> tuple[U64, Mask, Mask, U64]:
    """Load the words at addresses from the stack copies.

    Unsigned wrap-around makes one comparison enough: an address below the copy becomes a huge offset.

    Returns:
        (words, outside the copy, misaligned in the copy, masked addresses), each of shape (k,). A word is 0 if one of
        the two masks is set.
    """
    avma = avma & mask if mask != _ALL else avma
    offset = avma - lanes.base
    out = offset > lanes.last
    misaligned = (offset & words.misaligned) != 0
    place = lanes.first + (offset >> words.shift)
    bad = out | misaligned
    if bad.any():
        place[bad] = 0
        misaligned &= ~out
    value = words.words.take(place.view(np.int64)).astype(np.uint64, copy=False)
    if bad.any():
        value[bad] = 0
    return value, out, misaligned, avma


_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
