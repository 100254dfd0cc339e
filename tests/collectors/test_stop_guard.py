"""Tests that signals blocked during a stop are unblocked again whatever interrupts it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable

import pytest

from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.collectors.ptrace.thread_stop import StopGuard

pytestmark = [pytest.mark.live, pytest.mark.system]


class Interrupted(PtraceCalls):
    """Ptrace calls with an interrupt before signals are unblocked.

    The main thread runs the handler of a signal that another thread of the process received.
    """

    def restore_signals(self) -> None:
        self.restore_signals = super().restore_signals  # type: ignore[method-assign]
        raise KeyboardInterrupt


@pytest.mark.parametrize("again", [StopGuard.leave, StopGuard.close])
def test_interrupt_before_signals_are_let_in_is_made_good(again: Callable[[StopGuard], None]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    guard = StopGuard(Interrupted())
    guard.enter()
    try:
        assert len(signal.pthread_sigmask(signal.SIG_BLOCK, ())) > len(before)
        with pytest.raises(KeyboardInterrupt):
            guard.leave()
        again(guard)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        assert gc.isenabled()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        gc.enable()
