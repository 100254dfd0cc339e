"""What a collector is: it produces sample batches until it is stopped.

The session owns the loop's other half (unwinding, interning, writing). It gives back to the collector what only
the walk knows: how long a thread's stack is, and which sleeping thread needs a stop after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.collectors.cpu_accounts import Account
from pyprof.errors import AccessDenied
from pyprof.model.pauses import Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.records import dataclass, field


class CollectorRefused(AccessDenied):
    """This way of taking samples cannot be used here; another one may."""

    reason = "collector_refused"


class SeesPart(CollectorRefused):
    """It can be used, but does not see all that it should: one that sees more comes first."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the walk of a batch teaches the collector; columns run along the batch's lanes.

    top: highest stack address that the walk needed (Walk.top), 0 of a walk that did not reach the root. missing: avma
    of the word that an UNREADABLE lane needed, else 0: the next copy of that thread should hold it. stop: lanes whose
    thread slept and whose stack needs a register: take the next sample of that thread by a stop, once in this sleep,
    if its system call allows. look: to be called after each round of samples from now on, as soon as can be; code comes
    and goes in the target. None: no longer. took_ns: how long the walk took, 0 where that is not known.
    """

    batch: SampleBatch
    top: npt.NDArray[np.uint64]
    missing: npt.NDArray[np.uint64]
    stop: npt.NDArray[np.bool_]
    look: Callable[[], None] | None = None
    took_ns: int = 0


@dataclass(frozen=True, slots=True)
class CollectorStats:
    """Since the collector began. ticks: sampling times that were kept; skipped: those passed over because we were late.
    ticking_ns: the time in which they were due, so that ticks in that time are the rate reached: what passed, or where
    each thread or processor has a clock of its own, the sum of what these counted.

    pauses: the stops, by length. unchanged, blocked: samples taken without a stop. accounts: processor
    time by the process that was asked for, with its children where they are followed.
    """

    ticks: int = 0
    pauses: Pauses = field(default_factory=Pauses)
    skipped: int = 0
    unchanged: int = 0
    blocked: int = 0
    notes: tuple[str, ...] = ()
    accounts: Mapping[int, Account] = field(default_factory=dict)
    ticking_ns: int = 0


NOBODY = 0
"""source_id of batches without feedback."""


class Collector(Protocol):
    """Life: batches() is iterated once; stop() (from a signal handler too) makes it end after the sample under way;
    close() releases everything and is safe to call twice.
    """

    def batches(self) -> Iterator[SampleBatch]:
        """Batches as they come, at the latest as CollectOptions.flush_s says; an empty batch is a sign of life."""
        ...

    def learn(self, feedback: Feedback) -> None:
        """Of one of its batches, perhaps not the last one: what it teaches belongs to the batch's source_id."""
        ...

    def threads(self) -> list[ThreadInfo]:
        """Every thread that was ever sampled, names as last seen."""
        ...

    def retire(self) -> None:
        """A window was closed: forget what had ended when the one before was. Called between two batches."""
        ...

    def stats(self) -> CollectorStats: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class SampleSource(Collector, Protocol):
    """A collector whose batches are its own. source_id: of these, unique within the recording.

    acknowledges: whether it acknowledges flushes itself; False where its batches are completed by another collector.
    flushed_ns: the end of the samples that it has yielded, or yields now.
    """

    acknowledges: bool
    flushed_ns: int

    @property
    def source_id(self) -> int: ...
