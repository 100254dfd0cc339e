"""Tests of the pairs of two parameters of a test."""

from __future__ import annotations

import pytest

from tests.support import pairs

LONG, SHORT = ["a", "b", "c"], [1, 2]


def test_all_pairs_are_tested_where_it_is_not_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert sorted(pairs(SHORT, LONG)) == [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")]


def test_each_value_of_both_parameters_is_tested_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert pairs(LONG, SHORT) == [("a", 1), ("b", 2), ("c", 1)]
    assert pairs(SHORT, LONG) == [(1, "a"), (2, "b"), (1, "c")]
    assert pairs(SHORT, []) == []
