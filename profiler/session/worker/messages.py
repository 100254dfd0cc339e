"""The sampler's messages to the worker. The worker's answers are in answers.py.

All messages are values. Address spaces, program images and the outer parts of deep stacks are sent once, and named by
their number from then on (wire.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Protocol

from pyprof.collectors.base import CollectorStats
from pyprof.diagnostics import Diagnostics, Problem
from pyprof.model.labels import Labels
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.options import UnwindOptions, ViewOptions
from pyprof.records import dataclass, field
from pyprof.session.runtimes import InterpreterNews
from pyprof.session.unfollowed import Spent


@dataclass(frozen=True, slots=True)
class Naming:
    """How a window becomes a profile; see Session.profile. kernel: the kernel's frames were asked for. options: see
    Profile. labels: of all threads.
    """

    title: str
    rate_hz: float
    mode: str
    view: ViewOptions
    kernel: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message. begin_ns: since the epoch, at the same moment as monotonic_ns. confined: the worker should
    have given up its rights. yields: see Worker.
    """

    confined: bool
    unwind: UnwindOptions
    naming: Naming
    stats: CollectorStats
    begin_ns: int
    monotonic_ns: int
    yields: bool = False
    times: float = 1


@dataclass(frozen=True, slots=True)
class SentNews:
    """What happened to things that were sent. ended: numbers of program images. contested: of images, the places whose
    memory may be that of another file by now. images, spaces, outers: numbers that will not come again.
    """

    ended: tuple[int, ...] = ()
    images: tuple[int, ...] = ()
    contested: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    spaces: tuple[int, ...] = ()
    outers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """number: counts from 1; the worker's answer has it."""

    number: int
    batch: SampleBatch
    news: SentNews
    interpreters: InterpreterNews


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The sampler's half of a window's facts. now_ns, monotonic_ns: the window's end, since the epoch and by the clock
    of samples. counts: of its
    Diagnostics, since it began; problems: new ones. unfollowed: since the last cut. cpu_s, max_rss_kb: its own.
    """

    now_ns: int
    monotonic_ns: int
    stats: CollectorStats
    threads: tuple[ThreadInfo, ...]
    counts: Mapping[str, int]
    problems: Mapping[str, frozenset[Problem]]
    unfollowed: Spent
    cpu_s: float
    max_rss_kb: int
    interpreters: InterpreterNews


@dataclass(frozen=True, slots=True)
class Standing:
    """The state from time to time, and the number of the sink for what there is should the sampler be killed."""

    state: SamplerState
    sink: int
    delivered: int


class Extent(IntEnum):
    """What of the window under way a profile is of."""

    SO_FAR = 0  # all that there is
    PART = 1  # what came since the last part, or since the window began
    CUT = 2  # all, and the next window begins


@dataclass(frozen=True, slots=True)
class Ask:
    """A profile is wanted. sink: the number of the sink that takes the profile, as its `delivered`th; 0: it is the
    answer. requested: somebody ended the recording, and waits.
    """

    number: int
    extent: Extent
    state: SamplerState
    news: SentNews
    sink: int = 0
    delivered: int = 0
    requested: bool = False


class Errand(Protocol):
    """Something foreign that is looked at once, without a recording (errands.py). A value."""

    def pieces(self, diagnostics: Diagnostics) -> Iterator[object]:
        """In the worker. All are of one class, whose values an answer may hold (answers.py). What is not found or
        cannot be read is a PyprofError: other errors are the worker's own.
        """
        ...


@dataclass(frozen=True, slots=True)
class Examine:
    """An errand's pieces are wanted. confined: see Begin."""

    number: int
    confined: bool
    errand: Errand


@dataclass(frozen=True, slots=True)
class ScanForCode:
    """Code that was made at run time may have come or gone: scan for it at once."""


@dataclass(frozen=True, slots=True)
class Reply:
    """To what the worker asked last."""

    value: object


@dataclass(frozen=True, slots=True)
class Bye:
    """Nothing more is wanted."""


Message = Begin | Batch | Standing | Ask | Examine | ScanForCode | Reply | Bye
