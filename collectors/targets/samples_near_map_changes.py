"""Samples near a change of the mappings: the next reading decides which state they belong to."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable

from pyprof.model.modules import AddressSpace, Mapping
from pyprof.records import dataclass

Moves = list[tuple[int, AddressSpace]]
"""Samples, by number, that belong to another address space than the one that was current when they were taken; and that
address space.
"""

Mappings = tuple[Mapping, ...]


@dataclass(slots=True)
class UnsettledLane:
    """A sample whose address space the next reading of the maps decides; `proved` means that its mapping is that of the
    current address space.
    """

    lane: int
    pc: int
    sp: int
    proved: bool


class UnsettledSamples:
    """Samples whose address space the next reading of the maps decides; `ambiguous` is called for a sample that fits
    both states equally.
    """

    def __init__(self, ambiguous: Callable[[], None]) -> None:
        self._ambiguous = ambiguous
        self._samples: list[UnsettledLane] = []

    def add_sample(self, sample: UnsettledLane) -> None:
        self._samples.append(sample)

    def __bool__(self) -> bool:
        return bool(self._samples)

    def clear_samples(self) -> None:
        self._samples.clear()

    def decide_moves(
        self, old: AddressSpace, new: AddressSpace, joined: Callable[[Mappings], AddressSpace] | None
    ) -> Moves:
        """Decide for each sample near a change whether it belongs to the old or the new mappings.

        Args:
            old: The address space before the change.
            new: The one after it.
            joined: Returns an address space of mappings from both, or None if `new` is another image.
        """
        if not self._samples:
            return []
        if joined is not None:
            was, now = list_executables(old.mappings), list_executables(new.mappings)
            added, removed = now - was, was - now
            if not added:
                return []
            if not removed:
                return [(sample.lane, new) for sample in self._samples]
            if not _overlap(added, removed):
                union = joined(_union(old.mappings, new.mappings))
                return [(sample.lane, union) for sample in self._samples]
        changes = []
        for sample in self._samples:
            if sample.proved and (joined is None or old.mapping_at(sample.pc) != new.mapping_at(sample.pc)):
                continue
            score_old, score_new = (_score(space, sample.pc, sample.sp) for space in (old, new))
            if score_old == score_new > 1:
                self._ambiguous()
            if score_new >= score_old:
                changes.append((sample.lane, new))
        return changes

    def count_unexplained(self, moves: Moves, otherwise: AddressSpace) -> None:
        """Report samples whose pc is in no code; `otherwise` is the address space of samples that are not moved."""
        moved = dict(moves)
        for sample in self._samples:
            code = moved.get(sample.lane, otherwise).mapping_at(sample.pc)
            if code is None or not code.executable:
                self._ambiguous()


_Key = tuple[int, int, int, str, int, str]


def list_executables(mappings: Iterable[Mapping]) -> set[_Key]:
    return {
        (m.start, m.end, m.offset, m.dev, m.inode, m.path) for m in mappings if m.executable and m.path != "[vsyscall]"
    }


def _overlap(some: set[_Key], others: set[_Key]) -> bool:
    spans = sorted([(key[0], key[1]) for key in some | others])
    return any(a[1] > b[0] for a, b in itertools.pairwise(spans))


def _union(old: tuple[Mapping, ...], new: tuple[Mapping, ...]) -> tuple[Mapping, ...]:
    """Return the mappings of both states of a process. Old ones that contradict new ones are dropped."""
    starts, ends = [m.start for m in new], [m.end for m in new]
    kept = []
    for mapping in old:
        at = bisect_right(starts, mapping.start) - 1
        free_below = at < 0 or ends[at] <= mapping.start
        free_above = at + 1 >= len(starts) or starts[at + 1] >= mapping.end
        if free_below and free_above:
            kept.append(mapping)
    return tuple(sorted((*new, *kept), key=lambda m: m.start))


def _score(space: AddressSpace, pc: int, sp: int) -> int:
    code, stack = space.mapping_at(pc), space.mapping_at(sp)
    return (2 if code and code.executable else 0) + (1 if stack and "w" in stack.perms else 0)
