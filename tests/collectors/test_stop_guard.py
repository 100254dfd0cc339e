"""Signals that wait while a thread is stopped are let in again, whatever comes between."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable

import pytest

from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.collectors.ptrace.guard import StopGuard

pytestmark = [pytest.mark.live, pytest.mark.system]


class Interrupted(PtraceCalls):
    """Another thread of the process took a signal: its handler runs in the first thread, before signals are let in."""

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
