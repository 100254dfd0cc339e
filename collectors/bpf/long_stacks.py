"""The memory of long stacks, reassembled from the changed pages that the BPF program sends.

A record of a stack longer than 128 KB holds only the pages that have changed since the last record of the
same stack (struct sent_pages in sampler.h). So the records of all samples must be read in their order,
including samples that are dropped later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.ring_buffer_records import PAGE, Records
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.sample_batch import OuterStack, Piece, StackBeyondCopy

U8 = npt.NDArray[np.uint8]

_MAX_BYTES = 128 << 20
"""Maximum number of bytes of all long stacks together. The oldest one is dropped first, and the BPF program
then sends all of its pages again.
"""
_CHANGED_SHARE = 4
"""The worker process gets a long stack as a whole again when 1/_CHANGED_SHARE of it has changed. So the
memory of a batch stays within a multiple of its records.
"""
_BITS = np.arange(64, dtype=np.uint64)
_numbers = itertools.count(1 << 62)


@dataclass(slots=True, eq=False)
class _Stack:
    """One long stack with its contents as of the last BPF record of it.

    Attributes:
        end: Address of its end.
        number: Sequence number of its last record.
        memory: Its memory up to the end of its last page.
        outer: The part of the stack that the worker process already has, None if it has none.
        changed: Pages that have changed since `outer` was sent, by address.
    """

    end: int
    number: int = 0
    memory: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))
    outer: OuterStack | None = None
    changed: dict[int, Piece] = field(default_factory=dict)

    @property
    def top(self) -> int:
        """Address after the stack's last page."""
        return -(-self.end // PAGE) * PAGE

    def write(self, avma: int, data: U8) -> None:
        low = self.top - len(self.memory)
        if avma < low:
            more = max(low - (avma & -PAGE), len(self.memory))
            self.memory = np.concatenate([np.zeros(more, np.uint8), self.memory])
            low -= more
        self.memory[avma - low : avma - low + len(data)] = data

    def read(self, avma: int, end: int) -> U8:
        low = self.top - len(self.memory)
        return self.memory[avma - low : end - low]

    def describe_rest(self, base: int, high: int) -> StackBeyondCopy:
        """Return the stack above `high`, where the copy of a sample with the lowest address `base` ends."""
        outer = self.outer
        pieces = tuple(self.changed[page] for page in sorted(self.changed) if page >= high)
        if outer is None or high < outer.avma or _CHANGED_SHARE * PAGE * len(pieces) > self.end - high:
            first = (base & -PAGE) + PAGE
            words = self.read(first, self.end).copy().view(np.uint64)
            outer = self.outer = OuterStack(first, words, next(_numbers))
            self.changed.clear()
            pieces = ()
        return StackBeyondCopy(self.end - base, outer, pieces, exact=True)


class LongStacks:
    """The memory of all long stacks in a recording, by pid and end address of the stack."""

    def __init__(self, forget: Callable[[int, int], None]) -> None:
        """Create an empty collection of long stacks.

        Args:
            forget: Function (pid, end address) that makes the BPF program send all pages of a stack with its
                next sample.
        """
        self._forget = forget
        self._stacks: dict[tuple[int, int], _Stack] = {}
        self._bytes = 0

    def read_records(self, records: Records, data: U8) -> Mapping[int, StackBeyondCopy]:
        """Apply the pages in BPF records to the stored stacks.

        Args:
            records: The records, those of each thread in their order.
            data: The ring's memory.

        Returns:
            The part of the stack beyond the copy, by index of the record, for records with a long stack.
                Records whose stack is not known are left out.
        """
        found = {}
        for lane in np.flatnonzero(np.diff(records.sent)).tolist():
            rest = self._read_record(records, lane, data)
            if rest is not None:
                found[lane] = rest
        return found

    def _read_record(self, records: Records, lane: int, data: U8) -> StackBeyondCopy | None:
        row = records.sent_pages[records.sent[lane]]
        number, end, key = int(row[0]), int(row[1]), (int(records.pid[lane]), int(row[1]))
        stack = self._stacks.pop(key, None)
        self._bytes -= len(stack.memory) if stack is not None else 0
        if number == 1:
            stack = _Stack(end)
        elif stack is None or number != stack.number + 1:
            if number:
                self._forget(*key)
            return None
        stack.number = number
        base, at, size = int(records.base[lane]), int(records.offset[lane]), int(records.size[lane])
        high = base + size
        changed = stack.changed
        first = (base & -PAGE) + PAGE  # the page before it is in each record, and its part below sp in none
        stack.write(first, data[at + first - base : at + size])
        if stack.outer is not None:
            for page in range(first, high, PAGE):
                changed[page] = Piece(page, data[at + page - base : at + min(page + PAGE - base, size)].tobytes())
        at += size
        for page in self._find_later_pages(row[2:], stack, high):
            part = data[at : at + min(PAGE, end - page)]
            at += len(part)
            if page + PAGE <= end or not np.array_equal(stack.read(page, end), part):
                stack.write(page, part)
                changed[page] = Piece(page, part.tobytes())
        self._stacks[key] = stack
        self._bytes += len(stack.memory)
        while self._bytes > _MAX_BYTES:
            self._bytes -= len(self._stacks.pop(next(iter(self._stacks))).memory)
        return stack.describe_rest(base, high) if high < end else None

    @staticmethod
    def _find_later_pages(bits: npt.NDArray[np.uint64], stack: _Stack, high: int) -> list[int]:
        """Return the addresses of the pages beyond the first copy of a record, which ends at `high`, ascending."""
        set_bits = np.flatnonzero((bits[:, None] >> _BITS & np.uint64(1)).ravel())
        pages = (stack.top - PAGE * (1 + set_bits[::-1])).tolist()
        found = [page for page in pages if page >= high]
        if stack.end % PAGE and high < stack.end:
            found.append(stack.top - PAGE)
        return found
