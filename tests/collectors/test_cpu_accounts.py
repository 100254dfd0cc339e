"""Tests of processor time from the kernel's clocks, of programs that measure their own."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from pyprof.collectors.cpu_time_accounting import (
    NO_ACCOUNT,
    Account,
    Accounts,
    EndedThreadTimes,
    find_spent_time,
    find_unsampled_time,
)
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_cpu_times import TICK_NS, parse_times, read_process_ns
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions
from tests.cli.support import python
from tests.collectors.conftest import Start

pytestmark = [pytest.mark.live, pytest.mark.system]

FAMILY = CollectOptions(subprocesses=True)
MS = 1_000_000


def family(pid: int) -> dict[int, int]:
    with closing(procfs.ProcDir(pid)) as process:
        return dict.fromkeys((pid, *process.children()), pid)


@pytest.mark.parametrize("what", ["thread", "process"])
def test_time_of_all_that_came_and_went_between_looks_is_known(what: str, program: Start) -> None:
    kept = Accounts(FAMILY)
    kept.start({})
    target = program("c_births", what, "2000", "3")
    while (account := kept.result().get(target.pid)) is None or account.spent_ns < 300 * MS:
        kept.read_accounts(family(target.pid), force=True)
    assert target.process.stdin is not None
    target.process.stdin.close()
    with closing(procfs.ProcDir(target.pid)) as process:
        while not process.stat().is_zombie:
            time.sleep(0.01)
    kept.read_accounts({target.pid: target.pid}, force=True)
    assert target.process.stdout is not None
    _, spent = map(int, target.process.stdout.read().split())
    assert kept.result()[target.pid].name == "c_births"
    assert kept.result()[target.pid].spent_ns == pytest.approx(spent, rel=0.03, abs=30 * MS)


CHILDREN = """
import os, sys, time
def child(seconds):
    if not (pid := os.fork()):
        while time.process_time() < seconds: pass
        print(flush=True)
        sys.stdin.readline()
        os._exit(0)
    os.waitpid(pid, 0)
print("ready", flush=True)
for line in sys.stdin:
    child(float(line))
    print(flush=True)
"""
"""A program that starts a child for each line. The child spends the seconds of the line and ends after another line."""


def test_time_that_processes_spent_since_they_were_read_is_known_after_their_end() -> None:
    command = [sys.executable, "-c", CHILDREN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as target:
        lines, answers = target.stdin, target.stdout
        assert lines is not None
        assert answers is not None

        def say(text: str) -> None:
            lines.write(text + "\n")
            lines.flush()
            answers.readline()

        answers.readline()
        kept = Accounts(FAMILY)
        kept.start(family(target.pid))
        say("0.3")
        kept.read_accounts(family(target.pid), force=True)
        assert kept.totals().spent_ns > 290 * MS
        assert kept.totals().unread_ns < 20 * MS  # the child lives, and its account was read
        say("")
        kept.read_accounts(family(target.pid), force=True)
        assert kept.totals().unread_ns < 40 * MS
        say("0.3")
        say("")
        kept.read_accounts(family(target.pid), force=True)
        totals = kept.totals()
        assert 270 * MS < totals.unread_ns < 340 * MS + totals.spent_ns - 600 * MS  # times of children count in ticks
        say("0.3")
        say("")
        kept.start(family(target.pid))  # a pause without samples ends
        assert kept.totals() == totals
        lines.close()


def test_time_from_before_the_beginning_does_not_count(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    while read_process_ns(target.pid) < 200 * MS:
        time.sleep(0.01)
    kept = Accounts(CollectOptions())
    kept.start({target.pid: target.pid})
    kept.read_accounts({target.pid: target.pid}, force=True)
    assert kept.result()[target.pid].spent_ns < 100 * MS


def test_children_that_are_not_followed_do_not_count(program: Start) -> None:
    target = program("c_births", "process", "20000", "2")
    kept = Accounts(CollectOptions())
    kept.start({target.pid: target.pid})
    before = sum_of_children(target.pid)
    while sum_of_children(target.pid) < before + 300 * MS:
        time.sleep(0.01)
    kept.read_accounts({target.pid: target.pid}, force=True)
    assert 0 < kept.result()[target.pid].spent_ns < 100 * MS


def test_time_of_children_stays_where_their_parent_ends_between_the_same_looks() -> None:
    """End a child and its parent between two reads.

    Both have been reaped, so no process accounts for the child's time.
    """
    burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo; read line <&3"
    kept = Accounts(FAMILY)
    kept.start({})
    with subprocess.Popen(
        ["sh", "-c", f"{{ {burn}; }} 3<&0 & exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"\n"
        roots = family(parent.pid)
        kept.read_accounts(roots, force=True)
        spent = kept.result()[parent.pid].spent_ns
        parent.communicate()
    while any(Path(f"/proc/{pid}").exists() for pid in roots):
        time.sleep(0.01)
    kept.read_accounts(roots, force=True)
    assert kept.result()[parent.pid].spent_ns == spent > 20 * MS


def sum_of_children(pid: int) -> int:
    return parse_times(Path(f"/proc/{pid}/stat").read_bytes()).waited_ns


def test_time_is_unseen_only_where_it_is_more_than_rounding_and_chance() -> None:
    def missing(
        spent: int,
        seen: int,
        chance: int = 0,
        late: int = 0,
        lost: int = 0,
        kernel: int = 0,
        only: bool = False,
        ended: int = 0,
    ) -> list[tuple[int, int, int, int]]:
        before = {7: Account("a", 5_000 * MS, 4_700 * MS, 4_000 * MS, 0, 300 * MS, 100 * MS, only, 500 * MS)}
        due = (4_700 + spent - late - kernel) * MS
        times = ((5_000 + spent) * MS, due, (4_000 + seen) * MS, chance * MS, (300 + kernel) * MS, (100 + lost) * MS)
        found = find_unsampled_time(before, {7: Account("a", *times, only, (500 + ended) * MS)})
        return [(each.pid, each.short_ns // MS, each.lost_ns // MS, each.kernel_ns // MS) for each in found]

    assert missing(1000, 600) == [(7, 400, 0, 0)]
    assert missing(1000, 980) == []
    assert missing(1000, 1200) == []
    assert missing(100, 65) == []
    assert missing(1000, 900, chance=90) == [(7, 100, 0, 0)]
    assert missing(1000, 900, chance=101) == []
    assert missing(1000, 600, late=380) == []
    assert missing(1000, 600, late=200) == [(7, 200, 0, 0)]
    assert missing(1000, 600, lost=150) == [(7, 250, 150, 0)]
    assert missing(1000, 600, lost=0, only=True) == []
    assert missing(1000, 600, lost=150, only=True) == [(7, 0, 150, 0)]
    assert missing(1000, 600, lost=500, only=True) == [(7, 0, 400, 0)]
    assert missing(1000, 600, kernel=400) == [(7, 0, 0, 400)]
    assert missing(1000, 600, kernel=300) == [(7, 100, 0, 300)]
    assert missing(1000, 980, kernel=20) == []
    assert missing(1000, 900, chance=101, ended=80) == [(7, 80, 0, 0)]
    assert missing(1000, 900, ended=80) == [(7, 100, 0, 0)]
    assert missing(1000, 1000, ended=30) == []


def test_chance_is_where_threads_sleep_at_some_sampling_times(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions(rate_hz=100))
    kept.start({target.pid: target.pid})

    def chance_ns(samples: int) -> int:
        kept.count_batch(cast("SampleBatch", Seen(samples)), lambda pid: target.pid)
        kept.read_accounts({target.pid: target.pid}, force=True, slots=(100, 0))
        return kept.result()[target.pid].chance_ns

    assert chance_ns(50) == pytest.approx(2 * 10 * MS * 5)
    assert chance_ns(50) == 0


@dataclass
class Seen:
    count: int

    @property
    def pid(self) -> npt.NDArray[np.int32]:
        return np.full(self.count, 7, np.int32)

    @property
    def weight(self) -> npt.NDArray[np.int64]:
        return np.ones(self.count, np.int64)


def test_time_in_sampling_times_that_were_missed_is_not_due(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions())
    kept.start({target.pid: target.pid})
    for slots in ((10, 0), (15, 15), (15, 45)):
        before = read_process_ns(target.pid)
        while read_process_ns(target.pid) < before + 100 * MS:
            time.sleep(0.01)
        kept.read_accounts({target.pid: target.pid}, force=True, slots=slots)
    account = kept.result()[target.pid]
    assert account.spent_ns >= 300 * MS
    assert 120 * MS < account.due_ns < account.spent_ns - 150 * MS


@pytest.mark.parametrize(("inexact_ms", "missing_ms"), [(0, 10), (10_000, 10), (10_000, 5000)])
def test_time_in_the_kernel_is_what_records_and_the_account_leave_together(
    inexact_ms: int, missing_ms: int, program: Start
) -> None:
    target = program("c_births", "thread", "2000", "1")
    endings = EndedThreadTimes(inexact_ms * MS, missing_ms * MS)
    kept = Accounts(CollectOptions(), user_only=True, endings=lambda: endings)
    kept.start({target.pid: target.pid})
    before = read_process_ns(target.pid)
    while read_process_ns(target.pid) < before + 200 * MS:
        time.sleep(0.01)
    kept.read_accounts({target.pid: target.pid}, force=True)
    by_account = kept.totals().due_ns
    account = kept.result()[target.pid]
    assert account.spent_ns == kept.spent_ns(target.pid) >= 200 * MS
    assert account.due_ns + account.kernel_ns == account.spent_ns
    chance_ns = math.sqrt(account.spent_ns * TICK_NS)
    in_user_space = {0: max(by_account - chance_ns, 10 * MS), 10_000: min(missing_ms * MS, by_account)}[inexact_ms]
    assert account.due_ns == pytest.approx(in_user_space, abs=2)


def test_time_in_the_kernel_that_has_samples_is_not_counted_twice(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions(rate_hz=100), user_only=True)
    kept.start({target.pid: target.pid})
    kept.count_batch(cast("SampleBatch", Seen(1000)), lambda pid: target.pid)
    kept.read_accounts({target.pid: target.pid}, force=True)
    assert kept.result()[target.pid].kernel_ns == 0


def test_own_line_of_stat_has_what_the_clocks_say() -> None:
    times = parse_times(Path("/proc/self/stat").read_bytes())
    assert times.parent == os.getppid()
    assert times.own_ns == pytest.approx(read_process_ns(os.getpid()), abs=30 * MS)
    found = parse_times(b"1 (a) R) S 2 " + b"0 " * 9 + b"3 4 5 6 0 0 0 0 9 1 1")
    assert (found.own_ns, found.own_kernel_ns, found.waited_ns, found.waited_kernel_ns) == (
        *(70 * MS, 40 * MS),
        *(110 * MS, 60 * MS),
    )


def test_time_of_the_end_is_known_although_the_account_is_read_later(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions())
    kept.start({target.pid: target.pid})
    start_ns, before = time.monotonic_ns(), read_process_ns(target.pid)
    while read_process_ns(target.pid) < before + 200 * MS:
        time.sleep(0.01)
    kept.note_clocks()
    end_ns, spent_ns = time.monotonic_ns(), read_process_ns(target.pid) - before
    target.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # interpolation over this time would be wrong
    kept.read_accounts({target.pid: target.pid}, force=True)
    found = find_spent_time(NO_ACCOUNT, kept.result()[target.pid], start_ns, end_ns)
    assert found == pytest.approx(spent_ns, abs=15 * MS)


@pytest.mark.parametrize("is_noted", [False, True])
def test_reading_during_which_the_sampler_lost_its_processor_is_repeated(
    is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the clock of a process that runs all the time. Other work delays the first reading by 40 ms, before or after
    it has read the clock.
    """
    now_ns, delays_ns = 100 * MS, [0]

    def read_process_ns(pid: int) -> int:
        nonlocal now_ns
        spent_ns = now_ns
        now_ns += delays_ns.pop() if delays_ns else 0
        return now_ns if is_noted else spent_ns

    monkeypatch.setattr("pyprof.collectors.cpu_time_accounting.read_process_ns", read_process_ns)
    pid = os.getpid()
    kept = Accounts(CollectOptions(), clock=lambda: now_ns)
    kept.start({pid: pid})
    now_ns, delays_ns = 1000 * MS, [40 * MS]
    if is_noted:
        kept.note_clocks()
        now_ns += 100 * MS
    kept.read_accounts({pid: pid}, force=True)
    found = find_spent_time(NO_ACCOUNT, kept.result()[pid], 100 * MS, 1000 * MS)
    assert found == pytest.approx(900 * MS, abs=MS)


@pytest.mark.parametrize("is_machine", [False, True])
def test_account_that_is_read_late_makes_no_unsampled_time_in_its_window(is_machine: bool) -> None:
    """Close two windows of a second, whose accounts are read at 3 s, because the collector is late."""

    def account(at_ms: int, seen_ms: int) -> Account:
        readings = tuple((ms * MS, ms * MS) for ms in (0, *[at_ms] * (at_ms > 0)))
        times = (at_ms * MS, at_ms * MS, seen_ms * MS)
        return Account("a", *times, readings=readings, all_or_nothing=is_machine)

    accounts = [account(0, 0), account(3000, 1000), account(3000, 2000)]
    spans = [(0, 1000 * MS), (1000 * MS, 2000 * MS)]
    found = [
        find_unsampled_time({7: old}, {7: new}, span)
        for (old, new), span in zip(itertools.pairwise(accounts), spans, strict=True)
    ]
    unsampled_ms = [sum(each.short_ns for each in window) // MS for window in found]
    assert unsampled_ms == ([1000, 1000] if is_machine else [0, 0])  # the machine's process has no sample at all


def test_pause_is_spent_but_no_samples_are_due_in_it(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions())
    roots = {target.pid: target.pid}
    kept.start(roots)
    before = read_process_ns(target.pid)
    while read_process_ns(target.pid) < before + 100 * MS:
        time.sleep(0.01)
    kept.start(roots)
    account = kept.result()[target.pid]
    assert account.spent_ns >= 99 * MS
    assert account.due_ns == 0


_TWO_THREADS = """
import ctypes, sys, threading, time
def spin(name, seconds):
    ctypes.CDLL(None).prctl(15, name)
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
    print(name.decode(), time.thread_time_ns(), flush=True)
    done.wait()
done = threading.Event()
print("ready", flush=True)
sys.stdin.readline()
for name, seconds in ((b"short work", 0.1), (b"other", 0.2), (b"long work", 0.3)):
    threading.Thread(target=spin, args=(name, seconds)).start()
sys.stdin.readline()
done.set()
sys.stdin.read()
"""


def test_threads_with_some_names_have_the_time_of_their_own_clocks() -> None:
    kept = Accounts(CollectOptions(thread=re.compile("work$")))
    with python(_TWO_THREADS) as target:
        assert target.stdin is not None
        assert target.stdout is not None
        roots = {target.pid: target.pid}
        kept.start(roots)
        target.stdin.write("go\n")
        target.stdin.flush()
        lines = [target.stdout.readline().rpartition(" ") for _ in range(3)]
        kept.read_accounts(roots, force=True)
        account = kept.result()[target.pid]
        clocks = {name: int(ns) for name, _, ns in lines}
        assert account.spent_ns == pytest.approx(clocks["short work"] + clocks["long work"], abs=10 * MS)
        assert account.readings
        target.stdin.write("end\n")
        target.stdin.flush()
        while len(procfs.list_tasks(target.pid)) > 1:
            time.sleep(0.01)
        kept.read_accounts(roots, force=True)
        assert not kept.result()[target.pid].readings, "the last time of an ended thread is unknown"


def test_each_process_of_the_machine_has_its_own_account(program: Start) -> None:
    target = program("c_births", "thread", "2000", "1")
    kept = Accounts(CollectOptions(subprocesses=True), all_but=lambda: {os.getpid()})
    kept.start({})
    before = read_process_ns(target.pid)
    while read_process_ns(target.pid) < before + 100 * MS:
        time.sleep(0.01)
    later = program("c_births", "thread", "2000", "1")
    while read_process_ns(later.pid) < 50 * MS:
        time.sleep(0.01)
    kept.read_accounts({}, force=True)
    found = kept.result()
    assert os.getpid() not in found
    assert found[target.pid].spent_ns >= 99 * MS
    assert found[later.pid].spent_ns >= 49 * MS
    missing = {each.pid: each.short_ns for each in find_unsampled_time({}, found)}
    assert missing[target.pid] == found[target.pid].spent_ns
    kept.count_batch(cast("SampleBatch", Seen(3)), lambda pid: pid)
    assert 7 not in {each.pid for each in find_unsampled_time({}, kept.result())}


def test_account_of_two_collectors_counts_the_time_of_both_once() -> None:
    first = Account("a", 500, 500, 500, readings=((0, 0), (1000, 500)))
    later = Account("a", 900, 900, 900, readings=((800, 0), (1700, 900)))
    found = first.followed_by(later)
    assert [found.spent_at(at_ns) for at_ns in (400, 800, 1700)] == [200, 400, 1300]
