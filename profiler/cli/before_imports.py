"""Work before the imports of a command, because imports take long on a busy machine."""

from __future__ import annotations

import signal

from pyprof.session.worker import priority

_URGENT = {"record", "dump", "top"}
"""Commands for which the user waits for the first sample."""


def prepare(command: str) -> None:
    """Raise the priority of this process if the user waits for the command, and block the signal of a flight
    recorder.
    """
    if command == "record":
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))  # interrupts.listen() handles it
    if command in _URGENT:
        priority.take_more_to_start()
