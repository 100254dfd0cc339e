"""What a recording did, as numbers: the summary panel and `--summary FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyprof.diagnostics import Problem


@dataclass(frozen=True, slots=True)
class Stops:
    """Pauses that we caused: how many, their length, and the share of the recorded time (0..1)."""

    count: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    max_us: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """frames: how many sampled frames lay in it."""

    path: str
    build_id: str
    frames: int
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """One window of a recording. errors, ends, trust: name -> count (ends of samples, trust of frames).

    skipped: sampling times that were passed over because we were late. unchanged: samples of threads that had
    not run since the last one; blocked: samples read from outside. notes: sentences for the reader.
    """

    samples: int = 0
    threads: int = 0
    duration_s: float = 0.0
    rate_wanted: float = 0.0
    rate_reached: float = 0.0
    skipped: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    trust: Mapping[str, int] = field(default_factory=dict)
    stops: Stops = Stops()
    unchanged: int = 0
    blocked: int = 0
    modules: tuple[ModuleSummary, ...] = ()
    profiler_cpu_s: float = 0.0
    profiler_max_rss_kb: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The stable form of --summary."""
        return {
            "samples": self.samples,
            "threads": self.threads,
            "duration_s": self.duration_s,
            "rate_wanted": self.rate_wanted,
            "rate_reached": self.rate_reached,
            "skipped": self.skipped,
            "errors": dict(sorted(self.errors.items())),
            "ends": dict(sorted(self.ends.items())),
            "trust": dict(sorted(self.trust.items())),
            "stops": {
                "count": self.stops.count,
                "p50_us": self.stops.p50_us,
                "p99_us": self.stops.p99_us,
                "max_us": self.stops.max_us,
                "share": self.stops.share,
            },
            "not_stopped": {"unchanged": self.unchanged, "blocked": self.blocked},
            "modules": [
                {
                    "path": m.path,
                    "build_id": m.build_id,
                    "frames": m.frames,
                    "problems": [{"text": p.text, "remedy": p.remedy} for p in m.problems],
                }
                for m in self.modules
            ],
            "profiler": {"cpu_s": self.profiler_cpu_s, "max_rss_kb": self.profiler_max_rss_kb},
            "notes": list(self.notes),
        }
