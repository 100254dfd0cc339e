"""Tests of the fuzzing ledger: totals persist, and the reader with the least processor time comes next."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz import ledger


def test_turns_of_several_runs_are_summed(tmp_path: Path) -> None:
    ledger.add(tmp_path, "elf", 60.0, 1000, 300, True)
    ledger.add(tmp_path, "elf", 30.0, 500, 310, True)
    ledger.add(tmp_path, "elf", 30.0, 500, 310, False)
    assert ledger.load(tmp_path) == {"elf": ledger.Fuzzed(120.0, 2000, 310, 90.0, 1)}
    _, row = ledger.table(ledger.load(tmp_path), ["elf"])
    assert row.split() == ["elf", "2.0", "2,000", "310", "1.5", "m", "1"]


def test_reader_that_had_the_least_comes_next(tmp_path: Path) -> None:
    assert ledger.next_of({}, ["elf", "pe"]) == "elf"
    ledger.add(tmp_path, "elf", 5.0, 1, 1, True)
    assert ledger.next_of(ledger.load(tmp_path), ["elf", "pe"]) == "pe"
    ledger.add(tmp_path, "pe", 6.0, 1, 1, True)
    assert ledger.next_of(ledger.load(tmp_path), ["elf", "pe"]) == "elf"


def test_each_reader_has_a_turn_however_short_the_time() -> None:
    assert (ledger.turn_s(28, 31), ledger.turns(28, 31)) == (1, 31)
    assert (ledger.turn_s(600, 2), ledger.turns(600, 2)) == (ledger.MAX_S, 10)
