"""Processor time by the kernel's account, of programs that count their own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pyprof.collectors.cpu_accounts import Account, Accounts, Endings, parse_times, process_ns, unseen
from pyprof.collectors.linux import procfs
from pyprof.options import CollectOptions
from tests.collectors.conftest import Start

FAMILY = CollectOptions(subprocesses=True)
MS = 1_000_000


def family(pid: int) -> dict[int, int]:
    return dict.fromkeys((pid, *procfs.ProcDir(pid).children()), pid)


@pytest.mark.parametrize("what", ["thread", "process"])
def test_time_of_all_that_came_and_went_between_looks_is_known(what: str, program: Start) -> None:
    kept = Accounts(FAMILY)
    kept.begin({})
    target = program("c_births", what, "2000", "3")
    while (account := kept.result().get(target.pid)) is None or account.spent_ns < 300 * MS:
        kept.look(family(target.pid), force=True)
    assert target.process.stdin is not None
    target.process.stdin.close()
    while not procfs.ProcDir(target.pid).stat().is_zombie:
        pass
    kept.look({target.pid: target.pid}, force=True)
    assert target.process.stdout is not None
    _, spent = map(int, target.process.stdout.read().split())
    assert kept.result()[target.pid].name == "c_births"
    assert kept.result()[target.pid].spent_ns == pytest.approx(spent, rel=0.03, abs=30 * MS)


def test_time_from_before_the_beginning_does_not_count(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    while process_ns(target.pid) < 200 * MS:
        pass
    kept = Accounts(CollectOptions())
    kept.begin({target.pid: target.pid})
    kept.look({target.pid: target.pid}, force=True)
    assert kept.result()[target.pid].spent_ns < 100 * MS


def test_children_that_are_not_followed_do_not_count(program: Start) -> None:
    target = program("c_births", "process", "20000", "2")
    kept = Accounts(CollectOptions())
    kept.begin({target.pid: target.pid})
    before = sum_of_children(target.pid)
    while sum_of_children(target.pid) < before + 300 * MS:
        pass
    kept.look({target.pid: target.pid}, force=True)
    assert 0 < kept.result()[target.pid].spent_ns < 100 * MS


def sum_of_children(pid: int) -> int:
    return parse_times(Path(f"/proc/{pid}/stat").read_bytes(), user_only=False).waited_ns


def test_time_is_unseen_only_where_it_is_more_than_rounding_and_chance() -> None:
    def missing(
        spent: int, seen: int, chance: int = 0, late: int = 0, lost: int | None = None
    ) -> list[tuple[int, int, int]]:
        before = {7: Account("a", 5_000 * MS, 5_000 * MS, 4_000 * MS)}
        lost_ns = (100 + lost) * MS if lost is not None else None
        before = {7: replace(before[7], lost_ns=100 * MS if lost is not None else None)}
        due = (5_000 + spent - late) * MS
        after = Account("a", (5_000 + spent) * MS, due, (4_000 + seen) * MS, chance * MS, lost_ns)
        found = unseen(before, {7: after})
        return [(each.pid, each.spent_ns // MS, each.unseen_ns // MS) for each in found]

    assert missing(1000, 600) == [(7, 1000, 400)]
    assert missing(1000, 980) == []
    assert missing(1000, 1200) == []
    assert missing(100, 65) == []
    assert missing(1000, 900, chance=90) == [(7, 1000, 100)]
    assert missing(1000, 900, chance=101) == []
    assert missing(1000, 600, late=380) == []
    assert missing(1000, 600, late=200) == [(7, 1000, 200)]
    assert missing(1000, 600, lost=0) == []
    assert missing(1000, 600, lost=150) == [(7, 1000, 150)]
    assert missing(1000, 600, lost=500) == [(7, 1000, 400)]


def test_time_in_sampling_times_that_were_missed_is_not_due(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions())
    kept.begin({target.pid: target.pid})
    for slots in ((10, 0), (15, 15), (15, 45)):
        before = process_ns(target.pid)
        while process_ns(target.pid) < before + 100 * MS:
            pass
        kept.look({target.pid: target.pid}, force=True, slots=slots)
    account = kept.result()[target.pid]
    assert account.spent_ns >= 300 * MS
    assert 120 * MS < account.due_ns < account.spent_ns - 150 * MS


@pytest.mark.parametrize(
    ("inexact_ms", "missing_ms", "all_due"),
    [(0, 10, True), (10_000, 10, False), (100, 10, False), (10_000, 5000, True)],
)
def test_time_in_the_kernel_that_the_account_calls_user_space_is_not_due(
    inexact_ms: int, missing_ms: int, all_due: bool, program: Start
) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions(), endings=lambda: Endings(inexact_ms * MS, missing_ms * MS))
    kept.begin({target.pid: target.pid})
    before = process_ns(target.pid)
    while process_ns(target.pid) < before + 200 * MS:
        pass
    kept.look({target.pid: target.pid}, force=True)
    account = kept.result()[target.pid]
    assert account.due_ns == account.spent_ns
    whole = kept.spent_ns(target.pid)
    beyond = max(whole - missing_ms * MS, 0)
    assert account.due_ns == pytest.approx(whole - min(beyond, inexact_ms * MS), abs=2)
    assert (account.due_ns == whole) == all_due


def test_own_line_of_stat_has_what_the_clocks_say() -> None:
    times = parse_times(Path("/proc/self/stat").read_bytes(), user_only=False)
    assert times.parent == os.getppid()
    assert times.own_ns == pytest.approx(process_ns(os.getpid()), abs=30 * MS)
    assert parse_times(b"1 (a) R) S 2 " + b"0 " * 9 + b"3 4 5 6 0 0 0 0 9 1 1", user_only=True).own_ns == 30 * MS
