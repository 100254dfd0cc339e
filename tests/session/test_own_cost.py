"""What pyprof says of its own cost is its own, not that of the program which started it."""

from __future__ import annotations

import subprocess
import sys

from pyprof.session.own_cost import own_cost

ASK = "from pyprof.session.own_cost import own_cost; print(own_cost().max_rss_kb)"
BALLAST_KB = 300 << 10


def test_memory_of_the_starter_is_not_counted() -> None:
    ballast = bytearray(b"x") * (BALLAST_KB << 10)
    answer = subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True).stdout
    assert own_cost().max_rss_kb > len(ballast) >> 10
    assert 1000 < int(answer) < BALLAST_KB
