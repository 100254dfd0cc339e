"""The router of a recording: it opens the source that the plan names, and follows the plan when facts change.

One source, the main one, samples the recording. Some threads and processes may be sampled by stops instead
(open_sources.py). When the plan names another main source, the router opens that one while the present one still
samples. The present one then yields what it has up to that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.perf.collector import NEVER_STOPPED
from pyprof.collectors.plan import BPF, Choice
from pyprof.collectors.routing.open_sources import MainSource, OpenSources
from pyprof.collectors.routing.planner import Planner, describe_refusal_of_bpf
from pyprof.collectors.routing.stop_fallback import ClosedSources, OpenStops, sum_stats
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import Note, make_note
from pyprof.model.sample_batch import SampleBatch
from pyprof.records import replace

_CHANGES = {
    "plan_interpreter": "until_interpreter",
    "plan_second_stack": "until_second_stack",
    "plan_short_lives": "until_short_lives",
    "plan_waits_by_stops": "no_stops_needed",
}
"""The note for the summary about the time before a change of the main source, by the rule that changed it."""


OpenMain = Callable[[Choice, tuple[int, ...], bool], MainSource]
"""Function (choice, pids, launched) that opens a main source for processes, and raises its errors."""


class Router:
    """The collector of a live recording, which follows its plan."""

    def __init__(
        self,
        planner: Planner,
        choice: Choice,
        pids: tuple[int, ...],
        open_main: OpenMain,
        open_stops: OpenStops,
        launched: bool = False,
    ) -> None:
        """Open the first main source.

        Args:
            planner: The facts and the plan of the recording.
            choice: The first main source.
            pids: The processes.
            open_main: Opens a main source.
            open_stops: Opens the source that stops some threads.
            launched: True if the program has not started yet.
        """
        self._planner = planner
        self._open_main = open_main
        self._open_stops = open_stops
        self._past = ClosedSources()
        self._changes: list[Note] = []
        self._stopping = False
        self._following: tuple[Choice, MainSource] | None = None
        self._open = self._begin(choice, open_main(choice, pids, launched), launched)

    def _begin(self, choice: Choice, main: MainSource, launched: bool = False) -> OpenSources:
        return OpenSources(self._planner, choice, main, self._open_stops, self._follow, launched)

    def batches(self) -> Iterator[SampleBatch]:
        while True:
            yield from self._open.batches()
            if self._stopping or self._following is None:
                return
            self._change_source(*self._following)

    def _follow(self, choice: Choice, pids: Sequence[int]) -> bool:
        """Open the main source of a choice if it is another one, and end the present one. Return True if that is
        done.
        """
        alive = tuple(pids)
        if choice.source == self._open.choice.source or not alive:
            return False
        try:
            self._following = choice, self._open_main(choice, alive, False)
        except NoSuchProcess:
            return False
        except PyprofError as error:
            self._planner.refuse(choice.source, error, alive)
            if choice.source == BPF:
                self._changes.append(describe_refusal_of_bpf(error))
            return False
        self._open.end_now()
        return True

    def _change_source(self, choice: Choice, following: MainSource) -> None:
        """Close the main source after its last batch, and begin with the one that follows."""
        past, stats = self._open, self._open.stats()
        if stats.ticks:
            seconds = (time.monotonic_ns() - past.began_ns) / 1e9
            self._changes.append(make_note(_CHANGES[choice.rule], seconds=seconds))
        self._past.add_source(replace(stats, notes=()), past.list_threads())
        self._open = self._begin(choice, following)
        self._following = None
        if self._stopping:  # stop() may have missed this source
            self._open.stop()
        past.main.close()

    def learn(self, feedback: Feedback) -> None:
        self._open.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self._past.list_threads(self._open.list_threads())

    def retire(self) -> None:
        self._past.retire()
        self._open.retire()

    def stats(self) -> CollectorStats:
        found = sum_stats(self._past.stats, self._open.stats())
        notes = found.notes
        if len(self._past.stats.pauses):
            notes = tuple(note for note in notes if note != NEVER_STOPPED)
        return replace(found, notes=(*notes, *self._changes))

    def stop(self) -> None:
        self._stopping = True
        following = self._following
        self._open.stop()
        if following is not None:
            following[1].stop()

    def close(self) -> None:
        following, self._following = self._following, None
        try:
            self._open.close()
        finally:
            if following is not None:
                following[1].close()
