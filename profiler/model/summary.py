"""What a recording did, as numbers: the summary panel and `--summary FILE`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyprof.diagnostics import Problem
from pyprof.model.reason import Reason
from pyprof.model.reasons import counted, end_reason, problem
from pyprof.records import dataclass, field, field_names

PARTLY_READ = "partly_interpreted"
"""Label of whole native stacks that have some of their interpreter's functions, not all."""


def lacks(language: str) -> str:
    """Label of whole native stacks that run functions of a language that were not read."""
    return f"no_{language.lower().strip('.')}"


MUCH = 0.05
"""From this share of the primary value on, what is missing is printed first; less is part of the quality."""

ENOUGH_SAMPLES = 100
"""Minimum number of samples of running threads for which percentages are printed."""
NOT_SAMPLED_LABEL = "not_sampled"
"""Label of processor time that no sample stands for."""


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
    """frames: how many sampled frames lay in it. own: the primary value of samples that were taken in it."""

    path: str
    build_id: str
    frames: int
    problems: tuple[Problem, ...] = ()
    own: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """What the picture shows: the sum of the profile's primary value, and how much of it hangs on stacks that ended
    how (a StackEnd's label, or one of the words above). The parts add up to the total.
    """

    type: str = ""
    unit: str = ""
    total: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Language:
    """evaluators: how the native functions begin that run functions of the language. remedy: see FunctionsMissing."""

    name: str
    evaluators: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class FunctionsMissing:
    """Processes that ran functions of a language that were not read, and the primary value of those stacks, without
    those from before the first functions of their process were read: no option has more of a start. remedy: the
    option that has them, "" if none has. kernel: the kernel's frames were asked for, which stops cannot see.
    """

    language: str
    pids: tuple[int, ...]
    value: int
    remedy: str = ""
    kernel: bool = False

    @property
    def problem(self) -> Problem:
        where = "1 process" if len(self.pids) == 1 else f"{len(self.pids):,} processes"
        how = f"{self.remedy}, without -k, has them" if self.kernel else f"{self.remedy} has them"
        return problem(
            "functions_missing",
            language=self.language,
            where=where,
            how=how if self.remedy else "pyprof does not read them",
            command=f"pyprof record {self.remedy} …" if self.remedy else "",
        )

    def to_json(self) -> dict[str, object]:
        return {"language": self.language, "pids": list(self.pids), "value": self.value}


_LEAST_S = 0.1


@dataclass(frozen=True, slots=True)
class Children:
    """Seconds on processors while children were not followed: of the recorded processes, and of their children."""

    own_s: float = 0.0
    children_s: float = 0.0

    @property
    def problem(self) -> Problem | None:
        """None unless most of the time was the children's."""
        if self.children_s <= max(self.own_s, _LEAST_S):
            return None
        own_s, children_s = f"{self.own_s:.2f}", f"{self.children_s:.2f}"
        return problem("children_not_followed", own_s=own_s, children_s=children_s)


@dataclass(frozen=True, slots=True)
class NameCounts:
    """How addresses of a window got their names. known: from what was kept of earlier windows; read: looked up in
    files; files: that were read for it; dropped: from what is kept, for want of space. kept_bytes: estimated, now.
    """

    known: int = 0
    read: int = 0
    files: int = 0
    dropped: int = 0
    kept_bytes: int = 0

    def __sub__(self, earlier: NameCounts) -> NameCounts:
        """What came since; kept_bytes is that of now."""
        return NameCounts(
            self.known - earlier.known,
            self.read - earlier.read,
            self.files - earlier.files,
            self.dropped - earlier.dropped,
            self.kept_bytes,
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """One window of a recording. errors, ends, trust: name -> count (ends of samples, trust of frames).

    skipped: sampling times that were passed over because we were late. unchanged: samples of threads that had
    not run since the last one; blocked: samples read from outside. notes: sentences for the reader. processor_s: time
    on processors by the kernel's account, of processes for which that is known; not_sampled_s: of it, what no sample
    stands for; lost_s, kernel_s: of that, what is missing because records were lost, and what was spent in the kernel,
    which may not be sampled; late_s: what fell into sampling times that were skipped, and is in none of them. children:
    those that were not followed. languages: whose functions were looked for.
    functions_missing: one entry a language.
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
    shown: Shown = Shown()
    functions_missing: tuple[FunctionsMissing, ...] = ()
    processor_s: float = 0.0
    not_sampled_s: float = 0.0
    lost_s: float = 0.0
    kernel_s: float = 0.0
    late_s: float = 0.0
    children: Children = Children()
    languages: tuple[Language, ...] = ()
    names: NameCounts = NameCounts()

    @property
    def not_shown(self) -> dict[str, int]:
        """Return the primary value of whole native stacks by the language whose functions no option shows."""
        labels = {language.name: lacks(language.name) for language in self.languages if not language.remedy}
        return {name: value for name, label in labels.items() if (value := self.shown.ends.get(label, 0))}

    @property
    def is_small(self) -> bool:
        """Whether there are too few samples for percentages. The time of waits is exact however few they are."""
        return self.shown.type == "cpu" and 0 < self.samples < ENOUGH_SAMPLES

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What must be read before anything else."""
        by_stops = 0 < self.samples <= self.stops.count  # then the remedy is in use
        found = (
            *(
                missing.problem
                for missing in self.functions_missing
                if missing.value >= MUCH * self.shown.total and not (missing.remedy and by_stops)
            ),
            self.children.problem,
        )
        return tuple(problem for problem in found if problem is not None)

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
            "stops": _fields(self.stops),
            "not_stopped": {"unchanged": self.unchanged, "blocked": self.blocked},
            "modules": [
                {
                    "path": m.path,
                    "build_id": m.build_id,
                    "frames": m.frames,
                    "own": m.own,
                    "problems": _problems(m.problems),
                }
                for m in self.modules
            ],
            "profiler": {"cpu_s": self.profiler_cpu_s, "max_rss_kb": self.profiler_max_rss_kb},
            "not_followed": _fields(self.children),
            "processor": {
                "spent_s": self.processor_s,
                "not_sampled_s": self.not_sampled_s,
                "lost_s": self.lost_s,
                "kernel_s": self.kernel_s,
                "late_s": self.late_s,
            },
            "names": _fields(self.names),
            "notes": list(self.notes),
            "shown": {
                "type": self.shown.type,
                "unit": self.shown.unit,
                "total": self.shown.total,
                "ends": dict(sorted(self.shown.ends.items())),
                "not_shown": self.not_shown,
            },
            "functions_missing": [missing.to_json() for missing in self.functions_missing],
            "warnings": _problems(self.warnings),
            "counters": [
                {"name": name, "count": count, **_explained(counted(name))}
                for name, count in sorted(self.errors.items())
            ],
            "reasons": {
                name: {"title": found.title, **_explained(found)}
                for name in sorted({*self.ends, *self.shown.ends})
                if (found := end_reason(name)) is not None
            },
        }


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in field_names(type(record))}


def _problems(problems: Iterable[Problem]) -> list[dict[str, str]]:
    return [{"text": problem.text, "remedy": problem.remedy} for problem in problems]


def _explained(reason: Reason | None) -> dict[str, str]:
    """What JSON says of a reason."""
    if reason is None:
        return {"stage": "", "meaning": "", "retry": ""}
    return {"stage": reason.stage.value, "meaning": reason.sentence, "retry": reason.retry}
