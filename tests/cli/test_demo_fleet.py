"""Tests of how `pyprof demo-fleet` ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pyprof.fleet.cli import demo_fleet


def test_agent_has_ended_before_the_server_is_ended() -> None:
    """End a process that says when it ended, and then one that says when it was asked to end."""
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', time.monotonic_ns(), flush=True) or sys.exit())\n"
        "import atexit; atexit.register(lambda: (time.sleep(0.3), print(time.monotonic_ns(), flush=True)))\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    for each in both:
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    demo_fleet.end_in_order(both)
    agent, server = (each.communicate()[0].split() for each in both)
    assert int(agent[-1]) < int(server[1])


def test_second_signal_does_not_interrupt_the_end_of_the_demo() -> None:
    before = {number: signal.getsignal(number) for number in demo_fleet.SIGNALS}
    try:
        for number in demo_fleet.SIGNALS:
            signal.signal(number, demo_fleet.interrupt)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        for number in demo_fleet.SIGNALS:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
