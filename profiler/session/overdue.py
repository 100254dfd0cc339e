"""When a loop that was told to end is left where it is: in a call of the kernel that does not return, in endless lists,
or where it gets no processor.
"""

from __future__ import annotations

from typing import Protocol

LEAVE_S = 0.65
"""So long it may go on. The worker unwinds and names until shortly after (worker/link.py); then what there is is
written.
"""
STUB_S = 6.0
"""So long where it waits for a stub: what is behind it stands still, and a line may be slow."""
_HANG_UP = 0.5
"""For this part of that time its questions about files are answered."""


class _Ended(Protocol):
    def wait(self, timeout: float) -> bool: ...


class Ending(Protocol):
    """sampled: nothing is sampled any more."""

    @property
    def sampled(self) -> _Ended: ...

    def hang_up(self) -> None: ...


def ended_in_time(sampling: Ending, leave_s: float = LEAVE_S) -> bool:
    """For who was told just now that the loop is to end."""
    if sampling.sampled.wait(_HANG_UP * leave_s):
        return True
    sampling.hang_up()
    return sampling.sampled.wait((1 - _HANG_UP) * leave_s)
