"""Tests of the code map: the description of an address at a given time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.jit_code_map import ALWAYS, CodeMap, Span


def test_description_that_came_late_names_code_from_the_beginning() -> None:
    codes: CodeMap[str] = CodeMap()
    codes.add_spans([Span(100, 200, "f")], before_ns=50, now_ns=60)
    assert [codes.find(pc, 10) is not None for pc in (99, 100, 199, 200)] == [False, True, True, False]
    assert codes.changes == []


def test_new_description_ends_the_one_that_it_overlaps_and_both_hold_in_their_time() -> None:
    codes: CodeMap[str] = CodeMap()
    codes.add_spans([Span(100, 200, "old")], before_ns=ALWAYS, now_ns=10)
    codes.add_spans([Span(150, 160, "new")], before_ns=40, now_ns=50)
    at = {time: codes.find(155, time) for time in (5, 40, 45, 50, 99)}
    assert {time: span.value for time, span in at.items() if span} == {
        5: "old", 40: "old", 45: "new", 50: "new", 99: "new",
    }  # fmt: skip
    assert codes.find(110, 49) is not None
    assert codes.find(110, 50) is None
    assert codes.changes == [41, 50]


def test_removed_description_holds_up_to_the_time_at_which_it_was_missed() -> None:
    codes: CodeMap[str] = CodeMap()
    span = Span(100, 200, "f")
    codes.add_spans([span], ALWAYS, 10)
    codes.remove(span, 70)
    codes.add_spans([Span(100, 200, "g", since_ns=65)], 65, 70)
    assert [codes.find(100, time).value for time in (1, 65, 66, 69, 70)] == ["f", "f", "g", "g", "g"]  # type: ignore[union-attr]
    first = codes.first(100)
    assert first is not None
    assert first.value == "f"


def test_ended_descriptions_elsewhere_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: CodeMap[int] = CodeMap()
    for place in range(1, 1001):
        codes.add_spans([span := Span(place << 16, (place << 16) + 100, place)], ALWAYS, 10)
        codes.remove(span, 1000 + place)
    codes.add_spans([span := Span(0, 1 << 40, 0, since_ns=2100)], 2100, 2200)
    codes.remove(span, 3000)
    looked: list[int] = []
    holds = Span[int].holds

    def note(span: Span[int], pc: int, time_ns: int) -> bool:
        looked.append(span.value)
        return holds(span, pc, time_ns)

    monkeypatch.setattr(Span, "holds", note)
    found = [codes.find(pc, time) for pc, time in ((5 << 16, 100), (5 << 16, 2500), (5 << 10, 100))]
    assert [span and span.value for span in found] == [5, 0, None]
    assert set(looked) == {0, 5}
    assert codes.first(5 << 16) is found[0]
    assert codes.first(1 << 36) is found[1]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=100))
def test_map_that_is_read_at_once_is_the_same_as_line_by_line(ranges: list[tuple[int, int]]) -> None:
    one, many = CodeMap[int](), CodeMap[int]()
    for place, (start, size) in enumerate(ranges):
        one.add_spans([Span(start, start + size, place)], ALWAYS, 1)
    many.add_spans([Span(start, start + size, place) for place, (start, size) in enumerate(ranges)], ALWAYS, 1)
    for pc in range(100):
        a, b = one.find(pc, 9), many.find(pc, 9)
        assert (a and a.value) == (b and b.value), pc
