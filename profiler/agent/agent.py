"""The agent as a whole: rules, collectors, windows, the spool. It runs until it is told to end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from pyprof.agent.clock import WindowClock
from pyprof.agent.config import AgentConfig
from pyprof.agent.disk import locked
from pyprof.agent.inventory import Caps
from pyprof.agent.notify import Notifier
from pyprof.agent.own_cpu import OwnCpu
from pyprof.agent.places import default_spool
from pyprof.agent.processes import LOOK_S, ProcessTable
from pyprof.agent.sampled_group import SampledGroup
from pyprof.agent.settings import SamplingChoice
from pyprof.agent.splitting import segments
from pyprof.agent.spool import Spool
from pyprof.diagnostics import Diagnostics
from pyprof.errors import PyprofError
from pyprof.model.profile import Profile

Say = Callable[..., None]
"""(level, event, **fields): one line of the log."""


class Agent:
    """load: reads the configuration anew. say: takes lines of the log. run() is the whole life; end() and reload() may
    be called from any thread.
    """

    def __init__(self, load: Callable[[], AgentConfig], say: Say, notifier: Notifier) -> None:
        self._load, self._say, self._notifier = load, say, notifier
        self._config = load()
        values = self._config.values
        self._lock = locked(values.path or default_spool())
        self._diagnostics = Diagnostics()
        self._reported: dict[str, int] = {}
        caps = Caps(values.max_bytes, values.max_files, values.max_age)
        self.spool = Spool(values.path or default_spool(), caps, self._diagnostics)
        self._writing = threading.Lock()
        self._own_cpu = OwnCpu()
        self._wake = threading.Event()
        self._ending = self._reloading = False
        self._begin()

    def _begin(self) -> None:
        """With the rules of now."""
        config = self._config
        self._table = ProcessTable(config.rules, os.getpid())
        clock = WindowClock(config.values.every)
        self._lanes = [
            SampledGroup(sampling, config.values, self._table, clock, self._took, self._failed)
            for sampling in config.samplings()
        ]

    def end(self) -> None:
        self._ending = True
        self._wake.set()

    def reload(self) -> None:
        self._reloading = True
        self._wake.set()

    def run(self) -> None:
        """Raises OSError where the spool cannot be read."""
        self.spool.open()
        self._say("info", "started", spool_segments=len(self.spool.inventory), spool_bytes=self.spool.inventory.bytes)
        self._notifier.send("READY=1")
        while not self._ending:
            if self._reloading:
                self._reload()
            for lane in self._lanes:
                lane.tend()
            self._table.look()
            self._notifier.alive()
            self._wake.wait(LOOK_S)
            self._wake.clear()
        self._notifier.send("STOPPING=1")
        self._close()
        self._say("info", "ended")

    def _close(self) -> None:
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.close()

    def _reload(self) -> None:
        """A configuration that is wrong leaves everything as it was."""
        self._reloading = False
        self._notifier.reloading()
        try:
            config = self._load()
        except PyprofError as error:
            self._say("error", "reload failed", error=error.message)
        else:
            self._close()
            self._config = config
            self._begin()
            self._say("info", "reloaded", rules=len(config.rules))
        self._notifier.send("READY=1")

    def _took(self, sampling: SamplingChoice, profile: Profile) -> None:
        seen = {pid: each.verdict for pid, each in self._table.by_pid.items() if sampling in each.verdict.samplings}
        services = {verdict.service for verdict in seen.values()}
        found = segments(profile, self._table.verdict, services)
        with self._writing:
            kept = self.spool.put(found)
            inventory = self.spool.inventory
            self._say(
                "info" if kept else "error",
                "window" if kept else "window not written",
                mode=sampling.mode,
                rate=sampling.rate,
                seconds=round(profile.duration_ns / 1e9, 1),
                services=len(services),
                processes=len(seen),
                samples=profile.summary.samples,
                own_cpu_percent=self._own_cpu.percent(),
                spool_segments=len(inventory),
                spool_bytes=inventory.bytes,
                **self._new_counts(),
            )

    def _new_counts(self) -> dict[str, Any]:
        """What was dropped since the last line."""
        counts = dict(self._diagnostics.counts)
        found = {name: count - self._reported.get(name, 0) for name, count in counts.items()}
        self._reported = counts
        return {"dropped": found} if (found := {name: count for name, count in found.items() if count}) else {}

    def _failed(self, sampling: SamplingChoice, error: BaseException) -> None:
        hint = error.hint if isinstance(error, PyprofError) else ""
        about = {"error": str(error) or type(error).__name__, **({"hint": hint} if hint else {})}
        self._say("error", "not recording", mode=sampling.mode, rate=sampling.rate, **about)
