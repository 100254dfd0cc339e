"""Messages from the sampler to the worker. response_codec.py has the worker's responses.

All messages are values. Address spaces, program images and the outer parts of deep stacks are sent once, and are then
referred to by number (message_codec.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Protocol

from pyprof.collectors.base import CollectorStats
from pyprof.collectors.linux.process_cpu_times import Spent
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.thread_identity import Labels
from pyprof.options import UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.session.pipeline.interpreter_readers import InterpreterNews


@dataclass(frozen=True, slots=True)
class NamingOptions:
    """Settings with which a window becomes a profile (see Session.profile).

    Attributes:
        title: Title of the profile.
        rate_hz: Sampling rate.
        mode: Name of the time that is measured.
        view: Which frames are shown, and how.
        kernel: True if the user requested kernel frames.
        options: Options of the recording as text (see Profile.options).
        labels: Labels of all threads.
        suggests_packages: True if the user sees which package has the debug symbols of a file.
    """

    title: str
    rate_hz: float
    mode: str
    view: ViewOptions
    kernel: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    labels: Labels = ()
    suggests_packages: bool = True


@dataclass(frozen=True, slots=True)
class Begin:
    """The sampler's first message of a recording to the worker.

    Attributes:
        confined: True if the worker must have given up its rights.
        unwind: Options of the unwinder.
        naming: Settings of the profiles.
        stats: State of the collector.
        begin_ns: Beginning of the recording in nanoseconds since the epoch.
        monotonic_ns: The same moment by the monotonic clock.
        yields: True if the worker resolves names under SCHED_IDLE while the sampler does not wait.
        times: Factor for a slow machine of the time in which batches are still unwound after the deadline.
    """

    confined: bool
    unwind: UnwindOptions
    naming: NamingOptions
    stats: CollectorStats
    begin_ns: int
    monotonic_ns: int
    yields: bool = False
    times: float = 1


@dataclass(frozen=True, slots=True)
class ProcessUpdate:
    """Changes of objects that the worker already has.

    Attributes:
        ended: Numbers of program images whose process has ended or has called exec. Later messages may still refer to
            them.
        images: Numbers of program images to which no later message refers, so that the worker can forget them.
        contested: Address ranges, by number of the program image, in which another file may be mapped by now. The
            worker must not read them from the process's memory.
        spaces: Numbers of address spaces to which no later message refers.
        outers: Numbers of the outer parts of deep stacks to which no later message refers.
    """

    ended: tuple[int, ...] = ()
    images: tuple[int, ...] = ()
    contested: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    spaces: tuple[int, ...] = ()
    outers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of samples that the sampler sends to the worker. Batches are numbered from 1, and the response repeats
    the number.
    """

    number: int
    batch: SampleBatch
    news: ProcessUpdate
    interpreters: InterpreterNews


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The facts about the current window that only the sampler knows. The worker needs them for the window's profile.

    Attributes:
        now_ns: End of the window in nanoseconds since the epoch.
        monotonic_ns: End of the window by the clock of the samples.
        stats: State of the collector.
        threads: All sampled threads.
        counts: The sampler's diagnostic counters since the start of the recording.
        problems: The sampler's problems since the last message.
        unfollowed: Resources used by children that are not recorded, since the last window was closed.
        cpu_s: Processor time of the sampler in seconds.
        max_rss_kb: Peak memory of the sampler in KiB.
        interpreters: Changes of interpreters and their functions.
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
class Checkpoint:
    """A message with the sampler's current state, which the worker stores: if the sampler is killed, the worker makes
    the profile of the window from it and gives it to the sink.
    """

    state: SamplerState
    sink: int
    delivered: int


class Extent(IntEnum):
    """The part of the current window that a requested profile must cover."""

    SO_FAR = 0  # everything so far
    PART = 1  # what came since the last part, or since the window began
    CUT = 2  # everything, and the next window begins


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A request of the sampler for the profile of a window.

    Attributes:
        number: Number of the request.
        extent: The part of the window.
        state: The sampler's state.
        news: Changes to objects that were sent before.
        sink: Number of the sink that receives the profile; 0 if the response contains it.
        delivered: Number of the window for the sink.
        requested: True if the user ended the recording and waits.
    """

    number: int
    extent: Extent
    state: SamplerState
    news: ProcessUpdate
    sink: int = 0
    delivered: int = 0
    requested: bool = False


class OneShotTask(Protocol):
    """A task that a worker runs without a recording, such as the examination of one core file (worker_client.py). It
    must be possible to pickle it.
    """

    def pieces(self, diagnostics: Diagnostics) -> Iterator[object]:
        """Run the task in the worker, and yield its results. They are of one class whose values a response may contain
        (response_codec.py).

        Raises:
            PyprofError: Something is missing or cannot be read. Any other exception is a bug.
        """
        ...


@dataclass(frozen=True, slots=True)
class Examine:
    """A request to the worker for the results of a one-shot task. `confined` is True if the worker must have given up
    its rights.
    """

    number: int
    confined: bool
    errand: OneShotTask


@dataclass(frozen=True, slots=True)
class ScanForCode:
    """A request to the worker to look at once for JIT code, because some may have been added or removed."""


@dataclass(frozen=True, slots=True)
class Response:
    """The sampler's response to a question of the worker (SamplerCall)."""

    value: object


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The last message of the sampler to the worker, which then exits."""


Message = Begin | Batch | Checkpoint | ProfileRequest | Examine | ScanForCode | Response | Shutdown
