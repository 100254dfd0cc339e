"""The waker of a thread as the kernel reports it, and what that means for the wait.

A wait for a futex ends by a call of futex(2), by the end of a thread or by a signal. A nap ends by a timer or a signal.
If a timer interrupts a thread in another system call, that thread is not the waker.
"""

from __future__ import annotations

from pyprof.collectors.bpf.records import WaitEnds
from pyprof.collectors.linux.sampled_arch import WIDE
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.sample_batch import Surroundings
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class WakingCalls:
    """The numbers of the system calls that wake other threads, on one architecture.

    Attributes:
        futexes: Numbers of futex, futex_waitv, futex_wait.
        naps: Numbers of nanosleep, clock_nanosleep.
        signals: Numbers of kill and similar calls.
        wakes: Numbers of calls that wake a futex, including the end of a thread.
    """

    futexes: frozenset[int]
    naps: frozenset[int]
    signals: frozenset[int]
    wakes: frozenset[int]


CALLS = {
    "x86_64": WakingCalls(
        futexes=frozenset((202, 449, 455)),
        naps=frozenset((35, 230)),
        signals=frozenset((62, 129, 200, 234, 297)),
        wakes=frozenset((202, 454, 456, 60, 231)),
    ),
    "aarch64": WakingCalls(
        futexes=frozenset((98, 449, 455)),
        naps=frozenset((101, 115)),
        signals=frozenset((129, 138, 130, 131, 240)),
        wakes=frozenset((98, 454, 456, 93, 94)),
    ),
}
_HERE = CALLS[WIDE.name]
FUTEX_WAITS = _HERE.futexes
NOBODY = Mark(MarkKind.WOKEN)


def has_named_waker(ended: WaitEnds, n: int) -> bool:
    """Return True if another thread ended the wait and its name is known."""
    call, by = int(ended.call[n]), int(ended.waker_call[n])
    if not ended.waker_pid[n]:
        return False
    if call in FUTEX_WAITS:
        return by in _HERE.wakes or by in _HERE.signals
    return call not in _HERE.naps or by in _HERE.signals


def describe_waker(ended: WaitEnds, n: int) -> Surroundings:
    """Return the waker of an ended wait, for a thread that was not preempted."""
    if not has_named_waker(ended, n):
        return Surroundings(inner=NOBODY)
    name = ended.waker_name[n].split(b"\0", 1)[0].decode("utf-8", "replace")
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    tid = int(ended.waker_tid[n])
    inner = Mark(MarkKind.WOKEN, name=f"{text} ({tid})" if ended.waker_call[n] >= 0 else f"the kernel: {text}")
    return Surroundings(inner=inner, waker=(tid, int(ended.waking_ns[n])))
