"""Tests of the cost that pyprof reports for itself, which excludes that of the process that started it."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pytest

from pyprof.session import own_cpu_and_memory as module
from pyprof.session.own_cpu_and_memory import RecentCost, own_cost

ASK = "from pyprof.session.own_cpu_and_memory import own_cost; print(own_cost().max_rss_kb)"
BALLAST_KB = 300 << 10


def test_memory_of_the_starter_is_not_counted() -> None:
    ballast = bytearray(b"x") * (BALLAST_KB << 10)
    answer = subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True).stdout
    assert own_cost().max_rss_kb > len(ballast) >> 10
    assert 1000 < int(answer) < BALLAST_KB


def test_who_asks_often_is_told_the_memory_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, found = RecentCost(), []
    for now_s, most_kb in ((100.0, 1000), (104.9, 2000), (105.0, 2000)):
        monkeypatch.setattr(time, "monotonic", partial(float, now_s))
        monkeypatch.setattr(module, "_max_rss_kb", partial(int, most_kb))
        found.append(recent().max_rss_kb)
    assert found == [1000, 1000, 2000]
    assert recent().cpu_s > 0
