"""Work before the imports of a command, because imports take long on a busy machine."""

from __future__ import annotations

import gc
import signal

from pyprof.session.worker import priority

_URGENT = {"record", "dump", "top"}
"""Commands for which the user waits for the first sample."""
_GARBAGE, _URGENT_GARBAGE = 20_000, 200_000
"""Thresholds of Python's cyclic garbage collector, in new objects; the default is 700.

Imports make many objects and few cycles. freeze_loaded_objects() ends what is meant for the imports of urgent commands.
"""


def prepare(command: str) -> None:
    """Raise the priority of this process and the threshold of the garbage collector if the user waits for the
    command, and block the signal of a flight recorder.
    """
    gc.set_threshold(_URGENT_GARBAGE if command in _URGENT else _GARBAGE)
    if command == "record":
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))  # interrupts.listen() handles it
    if command in _URGENT:
        priority.raise_startup_priority()
