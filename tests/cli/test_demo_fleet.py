"""Tests of how `pyprof demo-fleet` ends."""

from __future__ import annotations

import signal

import pytest

from pyprof.fleet.cli import demo_fleet


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
