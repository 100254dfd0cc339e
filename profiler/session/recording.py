"""A recording under way: it owns the collector, the worker and the loop.

The loop runs in the thread that calls run(), or in one of its own after start(). Everything else may be called from any
thread: what concerns the samples is done by the loop itself, between two batches. Another process unwinds and names
them (session/worker/).
"""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from pyprof.collectors.base import CollectorStats
from pyprof.collectors.targets.launch import Launched
from pyprof.errors import PyprofError, UsageError
from pyprof.handover import Handover
from pyprof.model.profile import Profile
from pyprof.options import RecordOptions
from pyprof.records import dataclass, field
from pyprof.session.between_batches import BetweenBatches
from pyprof.session.deliveries import Deliveries
from pyprof.session.overdue import LEAVE_S, ended_in_time
from pyprof.session.worker import share
from pyprof.session.worker.channel import Part
from pyprof.session.worker.link import Pending
from pyprof.session.worker.messages import Extent
from pyprof.session.worker.sampling import Sampling

_SETTLED_S = 1.0
"""The start is over this many seconds after the first samples may be taken, also where there is none to walk."""
_PATIENCE_S = 5.0
"""How long a command may take to obey SIGTERM."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded. pid: of the first process. several: there may be more than one process. asked: how it was
    chosen, and what else was asked for beside RecordOptions, as text.
    """

    pid: int
    name: str
    several: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name if self.several else f"{self.name} ({self.pid})"


class Recording:
    """Made by session.opening; close(), or the end of its `with` block, ends it and leaves nothing behind.

    subject: what is recorded. command: the program that was started for it, None where none was. failure: what ended
    the recording early, None where nothing did; what was recorded until then is good. asked_to_end: was it the duration
    or a call that ended it? has_begun: have samples been taken? deliveries: what goes to a sink. on_cut: called in the
    loop's thread when windows() closes one, which ends at span_ns[1].
    """

    def __init__(
        self,
        sampling: Sampling,
        subject: Recorded,
        options: RecordOptions,
        handover: Handover,
        command: Launched | None = None,
    ) -> None:
        """handover: with the collector."""
        self.subject = subject
        self.options = options
        self.command = command
        self.failure: BaseException | None = None
        self.asked_to_end = False
        self.on_cut: Callable[[], None] = lambda: None
        self.has_begun = False
        self.deliveries = Deliveries(sampling, handover)
        self._kept: Sampling | None = sampling
        self._handover = handover
        self._between = BetweenBatches(handover)
        self._stopping = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: Profile | None = None
        self._settle_at = math.inf
        self._is_settled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def samples(self) -> int:
        """Of the window under way, so far."""
        return self._kept.samples if self._kept else 0

    @property
    def _sampling(self) -> Sampling:
        if self._kept is None:
            raise _closed()
        return self._kept

    def __repr__(self) -> str:
        state = "running" if self.running else "closed" if self._kept is None else "ended"
        return f"<Recording of {self.subject.title!r}: {state}, {self.samples:,} samples>"

    @property
    def running(self) -> bool:
        """False once the recording has ended, whatever ended it."""
        return not self._between.over

    @property
    def returncode(self) -> int | None:
        """Exit code of the command as a shell gives it (128 + signal); None while it runs, and where there is none."""
        return self.command.poll() if self.command else None

    def stats(self) -> CollectorStats:
        """What the collector did so far. Only for the `beat` of run()."""
        return self._sampling.stats()

    def pids(self) -> set[int]:
        """Of the processes that were sampled. Only for the `beat` of run()."""
        return {self.subject.pid, *self._sampling.pids()}

    @property
    def span_ns(self) -> tuple[int, int]:
        """The beginning and the end of what was recorded so far, by the monotonic clock; both 0 before it begins."""
        return self._sampling.span_ns

    def start(self) -> None:
        """Run the loop in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="pyprof", daemon=True)
        self._thread.start()

    def run(self, beat: Callable[[], None] = lambda: None, began: Callable[[], None] = lambda: None) -> None:
        """The loop, in this thread, until the target has ended, the duration is over or end() is called.

        beat: called after each batch, at least each half second, or each two where nobody watches (Deliveries.often)
        and a program in the kernel samples. began: called once samples are taken. The duration counts from then on.
        Never raises: failure has what went wrong.
        """
        timer = threading.Timer(self.options.duration or 0, self.end)
        timer.daemon = True

        def begin() -> None:
            self.has_begun = True
            self._settle_at = time.monotonic() + _SETTLED_S
            if self.options.duration:
                timer.start()
            began()

        self._handover.on_sampling = begin

        def between() -> None:
            self._turn()
            beat()

        try:
            self._sampling.run(between)
            self.failure = self._sampling.failure
        except BaseException as error:
            self.failure = error
        finally:
            timer.cancel()
            self._between.end()

    def _turn(self) -> None:
        """What is to be done between two batches."""
        if self.command and not self.options.subprocesses and self.command.poll() is not None:
            self._sampling.stop()
        if not self._is_settled and (self._sampling.is_walked or time.monotonic() > self._settle_at):
            self._is_settled = True
            share.take_usual()
            self._sampling.take_less()
        self._between.answer()
        if not self.asked_to_end:
            self.deliveries.send_due()

    def end(self) -> None:
        """Record nothing from now on; does not wait. From any thread, or a signal handler."""
        self.asked_to_end = True
        self._ending.set()
        if (sampling := self._kept) is not None:
            sampling.end()

    def hasten(self) -> None:
        """Names that are not known by now are not waited for. From any thread, or a signal handler."""
        if (sampling := self._kept) is not None:
            sampling.hasten()

    def abandon(self) -> None:
        """End at once, and lose what has not been written. From any thread, or a signal handler."""
        self.end()
        if (sampling := self._kept) is not None:
            sampling.abandon()

    def watch(self, left: Callable[[bool], None], leave_s: float = LEAVE_S, times: float = 1) -> None:
        """Have a thread see to it that the recording ends where end() is called. Where the loop stands in a call of the
        kernel that does not return, or in a target's endless lists, it is left there after leave_s: what the worker has
        goes to the sink of deliveries.inherit(), if samples were taken. left: is called then: did the sink get it? It
        must end this process.
        times: on a slow machine all that is left has as many times as long.
        """
        self._sampling.leaves = True
        self._sampling.take_longer(times)
        threading.Thread(target=self._watch, args=(left, times * leave_s), name="pyprof end", daemon=True).start()

    def _watch(self, left: Callable[[bool], None], leave_s: float) -> None:
        self._ending.wait()
        share.take_more(os.getpid())
        sampling = self._kept
        if sampling is None or ended_in_time(sampling, leave_s):
            return
        if not self.has_begun:
            sampling.abandon()
        left(self.has_begun and sampling.leave())

    def waits(self) -> Mapping[int, float]:
        """Return how long each thread of pyprof has waited for a processor, in seconds; nothing after close()."""
        return self._kept.waits() if self._kept is not None else {}

    def wait(self, timeout: float | None = None) -> bool:
        """Until the recording has ended, at most `timeout` seconds; has it?"""
        return self._between.wait(timeout)

    def stop(self) -> Profile:
        """End the recording; the profile since its beginning, or since the last window that windows() has given.

        Every further call returns the same profile.
        """
        self.end()
        if self._thread is not None:
            self._thread.join()
        with self._stopping:
            if self._last is None:
                sampling = self._sampling
                if self.running:
                    raise PyprofError("the recording never began")
                self._last = sampling.ask(Extent.CUT).profile()
            return self._last

    def peek(self) -> Profile:
        """What there is so far of the window under way; nothing is cut. After the end: what stop() gives.

        Takes up to half a second, and the time to look names up, in which the sampling goes on.
        """
        asked = self._between.ask(lambda: self._sampling.ask(Extent.SO_FAR), time.monotonic_ns())
        return asked.profile() if asked is not None else self.stop()

    def part(self) -> Profile | None:
        """What came to the window under way since the last part of it, or since it began: parts together are what
        peek() gives, but for what is known only at a window's end. None after the recording's end.
        """
        asked = self._part()
        return asked.profile() if asked is not None else None

    def packed_part(self) -> Sequence[Part] | None:
        """part(), as answers.unpacked_profile() takes it: for who keeps it, and may never read it."""
        asked = self._part()
        return asked.packed() if asked is not None else None

    def _part(self) -> Pending | None:
        return self._between.ask(lambda: self._sampling.ask(Extent.PART), time.monotonic_ns())

    def windows(self, every: float) -> Iterator[Profile]:
        """The profile of each `every` seconds, without a gap between two, until the recording has ended; the last one,
        of what is left, if anything is, is the one that stop() returns. A window lasts longer where the next one is
        asked for later. Raises UsageError.
        """
        if not every > 0:
            raise UsageError(f"windows of {every!r} seconds cannot be had")

        def cut() -> Pending | None:
            if self.asked_to_end:
                return None
            self.on_cut()
            return self._sampling.ask(Extent.CUT)

        def found() -> Iterator[Profile]:
            due_ns = time.monotonic_ns() + round(every * 1e9)
            while (asked := self._between.ask(cut, due_ns)) is not None:
                yield asked.profile()
                due_ns = max(due_ns + round(every * 1e9), time.monotonic_ns())
            last = self.stop()
            if last.duration_ns:
                yield last

        return found()

    def between(self, job: Callable[[], None]) -> None:
        """Have it done between two batches, when no thread of the target is stopped; here where the loop has ended."""

        def do() -> bool:
            job()
            return True

        if self._between.ask(do, time.monotonic_ns()) is None:
            job()

    def look_around(self) -> None:
        """There may be other processes to record than before: the collector looks now. From any thread."""
        self._handover.want(time.monotonic_ns())

    def detach(self) -> None:
        """Like close(), but the command runs on."""
        self.end()
        if self._thread is not None:
            self._thread.join()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
            self.deliveries.close()
            gc.collect()  # tables and object files refer to one another; their descriptors are closed with them

    def close(self) -> None:
        """End the recording and release what it holds: stop() must have been called before, if its profile is wanted.

        A command that runs is ended by SIGTERM, or by SIGKILL if that does not help. Safe to call twice.
        """
        self.detach()
        if self.command is not None:
            self.command.terminate(_PATIENCE_S)


def _closed() -> PyprofError:
    return PyprofError("the recording is closed", "call stop() before, within the `with` block")
