"""Samples that are wanted at a time: collectors say until when they gave all."""

from __future__ import annotations

from pyprof.handover import NEVER_NS, PATIENCE_NS, Handover


def test_window_is_closed_when_all_samples_of_it_were_given() -> None:
    handover = Handover()
    handover.want(100)
    handover.want(200)
    assert handover.next_ns == 100
    assert not handover.gave(99)
    assert not handover.is_ready(100, 150)
    assert handover.gave(150)
    assert handover.next_ns == 200
    assert handover.is_ready(100, 150)
    assert not handover.is_ready(200, 250)
    assert handover.gave(200)
    assert handover.next_ns == NEVER_NS
    assert not handover.gave(300), "nobody waits"


def test_window_of_a_collector_that_says_nothing_is_closed_all_the_same() -> None:
    handover = Handover()
    handover.want(100)
    assert not handover.is_ready(100, 99 + PATIENCE_NS)
    assert handover.is_ready(100, 100 + PATIENCE_NS)


def test_collector_that_sleeps_is_woken() -> None:
    handover, woken = Handover(), []
    handover.wake = lambda: woken.append(handover.next_ns)
    handover.want(7)
    assert woken == [7]


def test_who_looks_often_gets_all_samples_so_often() -> None:
    handover, woken = Handover(), []
    handover.wake = lambda: woken.append(handover.next_ns)
    assert not handover.gave(100)
    handover.often(50)
    handover.often(70)
    assert woken == [150, 150]
    assert not handover.gave(160), "nobody waits"
    assert handover.next_ns == 210
    handover.want(170)
    assert handover.next_ns == 170
    assert handover.gave(170)
    assert handover.next_ns == 220
