"""Tests that the columnar table of code descriptions behaves like a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.jit_code_map import ALWAYS, NEVER, CodeTable, NamedRanges

Line = tuple[int, int, str]


@dataclass(slots=True)
class Held:
    line: Line
    since: int
    until: int = NEVER

    def over(self, pc: int) -> bool:
        return self.line[0] <= pc < self.line[1]


def overlap(a: Line, b: Line) -> bool:
    return a[0] < b[1] and b[0] < a[1]


class Specification:
    """The specification of the table.

    It has a list of current descriptions, and one of ended ones in the order of their ends.
    """

    def __init__(self) -> None:
        self.now: list[Held] = []
        self.past: list[Held] = []
        self.changes: set[int] = set()

    def add(self, lines: list[Line], before: int, now: int, anew: bool) -> None:
        known = [held.line for held in self.now]
        fresh = [line for line in lines if line not in known]
        kept = [line for at, line in enumerate(fresh) if not any(overlap(line, other) for other in fresh[at + 1 :])]
        lost = [line for at, line in enumerate(fresh) if line not in kept]
        if not self.now and not self.past:
            self.now = [Held(line, ALWAYS) for line in kept]
            return
        placed = [Held(line, before if any(overlap(line, o) for o in [*known, *lost]) else ALWAYS) for line in kept]
        passed = [Held(line, before if any(overlap(line, other) for other in known) else ALWAYS) for line in lost]
        ended = [
            held
            for held in sorted(self.now, key=lambda held: held.line)
            if any(overlap(held.line, line) for line in fresh) or (anew and held.line not in lines)
        ]
        for held in [*ended, *passed]:
            held.until = now
            self.past.append(held)
        self.now = [held for held in self.now if held not in ended] + placed
        self.changes |= {now} if ended or passed else set()
        self.changes |= {before + 1} if any(held.since == before for held in [*placed, *passed]) else set()

    def find(self, pc: int, time: int) -> str | None:
        return next(
            (h.line[2] for h in [*self.now, *self.past[::-1]] if h.over(pc) and h.since < time < h.until),
            None,
        )

    def first(self, pc: int) -> str | None:
        return next((held.line[2] for held in [*self.past, *self.now] if held.over(pc)), None)


def ranges(lines: list[Line]) -> NamedRanges:
    names = [name.encode() for _, _, name in lines]
    return NamedRanges(
        np.array([start for start, _, _ in lines], np.uint64),
        np.array([end for _, end, _ in lines], np.uint64),
        np.array([len(name) for name in names], np.uint16),
        b"".join(names),
    )


line = st.tuples(st.integers(0, 30), st.integers(1, 9), st.sampled_from(["f", "gé", "hhh"]))
reading = st.tuples(st.lists(st.lists(line.map(lambda at: (at[0], at[0] + at[1], at[2])), max_size=6)), st.booleans())


@given(st.lists(reading, max_size=5))
def test_columns_say_what_a_list_says(readings: list[tuple[list[list[Line]], bool]]) -> None:
    table, expected = CodeTable(), Specification()
    for at, (pieces, anew) in enumerate(readings):
        before, now = (10 * at, 10 * at + 5) if at else (ALWAYS, 5)
        table.add_reading((ranges(piece) for piece in pieces), before, now, anew)
        expected.add([line for piece in pieces for line in piece], before, now, anew)
        for pc in range(40):
            first = table.first(pc)
            assert (first and first.value) == expected.first(pc), pc
            for time in range(2, 10 * at + 8, 5):
                found = table.find(pc, time)
                assert (found and found.value) == expected.find(pc, time), (pc, time)
                assert table.find(pc, time) is found
    assert table.changes == sorted(expected.changes)
    assert sorted((s.start, s.end, s.value) for s in table) == sorted(held.line for held in expected.now)
    assert table.size == sum(end - start for start, end, _ in (held.line for held in expected.now))


def test_what_ended_before_a_time_is_forgotten() -> None:
    table = CodeTable()
    for at, name in enumerate(("old", "newer", "now"), 1):
        table.add_reading([ranges([(0, 10, name)])], 10 * at - 5, 10 * at)
    assert [found.value for time in (3, 18, 40) if (found := table.find(5, time))] == ["old", "newer", "now"]
    table.forget(25)
    assert [found.value for time in (3, 18, 40) if (found := table.find(5, time))] == ["newer", "now"]
    table.forget(30)
    assert [found and found.value for found in (table.find(5, 18), table.find(5, 40))] == [None, "now"]
    assert table.changes == []
