"""Facts about a recording, as numbers: the summary panel and `--summary FILE`, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyprof.lazy_dataclasses import dataclass, field, field_names, replace
from pyprof.model.loss_reason_texts import Note, counted, counter_title, end_reason, problem
from pyprof.model.reason_type import Reason
from pyprof.problem_counters import Problem

PARTLY_READ = "partly_interpreted"
"""Label of complete native stacks in which some interpreter functions are missing."""


def lacks(language: str) -> str:
    """Return the label of complete native stacks in which functions of this language are missing, because the recording
    did not read them.
    """
    return f"no_{language.lower().strip('.')}"


MUCH = 0.05
"""Minimum share of the profile's primary value (time) from which on a summary warns about what a profile lacks. Smaller
shares appear only in its section about the quality of stacks.
"""

ENOUGH_SAMPLES = 100
"""Minimum number of samples of running threads for which a summary has percentages."""
NOT_SAMPLED_LABEL = "not_sampled"
"""Label in a summary's `ends` of processor time that no sample stands for."""


@dataclass(frozen=True, slots=True)
class Stops:
    """Pauses of the target that the profiler caused: number, lengths, and share (0..1) of the recorded time."""

    count: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    max_us: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """Totals of one object file in a summary.

    Attributes:
        path: Path of the file.
        build_id: Build id of the file.
        frames: Number of sampled frames in it.
        problems: Its problems.
        own: Primary value (such as nanoseconds) of samples whose innermost frame is in it.
    """

    path: str
    build_id: str
    frames: int
    problems: tuple[Problem, ...] = ()
    own: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """The primary value of a profile's samples (such as nanoseconds), divided by how their stacks ended.

    Attributes:
        type: Type of the primary value.
        unit: Unit of the primary value.
        total: Sum of the primary value.
        ends: Parts of the total by label: that of a StackEnd, PARTLY_READ, NOT_SAMPLED_LABEL or the result of lacks().
            They add up to the total.
    """

    type: str = ""
    unit: str = ""
    total: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Language:
    """An interpreted language whose functions a recording tries to show.

    Attributes:
        name: Its name.
        evaluators: Prefixes of the native functions that run functions of the language.
        hint: The option that shows its functions, "" if there is none.
    """

    name: str
    evaluators: tuple[str, ...]
    hint: str


_MAX_NAMED_PIDS = 3
"""Maximum number of processes that a hint names. It names them because a recording of all processes by stops has few
samples on a busy machine.
"""


@dataclass(frozen=True, slots=True)
class FunctionsMissing:
    """Processes that ran functions of a language that were not read.

    Attributes:
        language: Name of the language.
        pids: The processes.
        value: Primary value of the stacks that lack such functions. Stacks from before the first functions of their
            process were read do not count, because no option shows more of the start.
        hint: The option that shows the functions, "" if there is none.
        kernel: True if kernel frames were requested, which stops cannot see.
    """

    language: str
    pids: tuple[int, ...]
    value: int
    hint: str = ""
    kernel: bool = False

    @property
    def problem(self) -> Problem:
        """The warning that functions of this language are missing in these processes."""
        where = "1 process" if len(self.pids) == 1 else f"{len(self.pids):,} processes"
        named = self.pids if len(self.pids) <= _MAX_NAMED_PIDS else ("PID",)
        hint = " ".join((*(f"-p {pid}" for pid in named), self.hint))
        how = f"{hint}, without -k, has them" if self.kernel else f"{hint} has them"
        return problem(
            "functions_missing",
            language=self.language,
            where=where,
            how=how if self.hint else "pyprof does not read them",
            command=f"pyprof record {hint} …" if self.hint else "",
        )

    def to_json(self) -> dict[str, object]:
        """Return the missing functions as an entry of the JSON of `--summary`."""
        return {"language": self.language, "pids": list(self.pids), "value": self.value}


_MIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Children:
    """Processor time, in seconds, of the recorded processes and of their children, for a recording that does not follow
    children.
    """

    own_s: float = 0.0
    children_s: float = 0.0

    @property
    def problem(self) -> Problem | None:
        """The warning that children of the target were not recorded, None unless they used most of the time."""
        if self.children_s <= max(self.own_s, _MIN_S):
            return None
        own_s, children_s = f"{self.own_s:.2f}", f"{self.children_s:.2f}"
        return problem("children_not_followed", own_s=own_s, children_s=children_s)


@dataclass(frozen=True, slots=True)
class NameCounts:
    """Counts for one window of how addresses got their names: from the cache or from files.

    Attributes:
        known: Number that were cached from earlier windows.
        read: Number that were looked up in files.
        files: Number of files that were read.
        dropped: Number that were dropped from the cache, for lack of space.
        kept_bytes: Estimated current size of the cache.
    """

    known: int = 0
    read: int = 0
    files: int = 0
    dropped: int = 0
    kept_bytes: int = 0

    def __sub__(self, earlier: NameCounts) -> NameCounts:
        """Return the counts of resolved names since an earlier state, with the current kept_bytes."""
        return NameCounts(
            self.known - earlier.known,
            self.read - earlier.read,
            self.files - earlier.files,
            self.dropped - earlier.dropped,
            self.kept_bytes,
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts about one window of a recording.

    Attributes:
        samples: Number of samples.
        threads: Number of threads.
        duration_s: Length in seconds.
        rate_wanted: The requested sampling rate.
        rate_reached: The actual sampling rate.
        skipped: Number of sampling times that were skipped because the sampler was late.
        errors: Diagnostic counters.
        ends: Number of samples by label of their stack's end.
        trust: Number of frames by label of their source.
        stops: Pauses of the target that the profiler caused.
        unchanged: Number of samples of threads that had not run since their previous sample.
        blocked: Number of samples that were read without a stop.
        modules: Totals of object files.
        profiler_cpu_s: Processor time of the profiler in seconds.
        profiler_max_rss_kb: Peak memory of the profiler in KiB.
        notes: How it was made, and what it lacks as a whole.
        shown: The primary value by how stacks ended.
        functions_missing: One entry for each language.
        processor_s: Processor time by the kernel's accounts, of processes for which it is known.
        not_sampled_s: The part of processor_s without samples.
        lost_s: The part of not_sampled_s whose records were lost.
        kernel_s: The part of not_sampled_s in the kernel, which may not be sampled.
        late_s: Processor time in skipped sampling times, which is in none of these parts.
        children: Processor time of children that were not followed.
        languages: Languages whose functions were looked for.
        names: How addresses got their names.
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
    notes: tuple[Note, ...] = ()
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
        """The primary value (such as nanoseconds) of complete stacks that lack the functions of a language, by
        language. It has only languages for which no option shows functions.
        """
        labels = {language.name: lacks(language.name) for language in self.languages if not language.hint}
        return {name: value for name, label in labels.items() if (value := self.shown.ends.get(label, 0))}

    @property
    def is_small(self) -> bool:
        """True if a recording has too few samples for percentages.

        The time of waits is exact for any number of samples.
        """
        return self.shown.type == "cpu" and 0 < self.samples < ENOUGH_SAMPLES

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems of a recording that the user must see first: its warnings."""
        by_stops = 0 < self.samples <= self.stops.count  # then the hint is already in use
        found = (
            *(
                missing.problem
                for missing in self.functions_missing
                if missing.value >= MUCH * self.shown.total and not (missing.hint and by_stops)
            ),
            self.children.problem,
        )
        return tuple(problem for problem in found if problem is not None)

    def to_json(self) -> dict[str, object]:
        """Return the summary as the JSON value that --summary writes."""
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
            "notes": [note.to_json() | {"text": note.text} for note in self.notes],
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
                {"name": name, "count": count, "title": counter_title(name), **_explained(counted(name))}
                for name, count in sorted(self.errors.items())
            ],
            "reasons": {
                name: {"title": found.end_title, **_explained(found)}
                for name in sorted({*self.ends, *self.shown.ends})
                if (found := end_reason(name)) is not None
            },
        }


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in field_names(type(record))}


def _problems(problems: Iterable[Problem]) -> list[dict[str, str]]:
    return [{"reason": each.reason, "text": each.text, "hint": each.hint} for each in problems]


def _explained(reason: Reason | None) -> dict[str, str]:
    """Return the stage, the meaning and the hint of a reason as fields of a JSON object."""
    if reason is None:
        return {"stage": "", "meaning": "", "hint": ""}
    return {"stage": reason.stage.value, "meaning": reason.sentence, "hint": reason.hint}


_SUMS = (
    "skipped",
    "unchanged",
    "blocked",
    "profiler_cpu_s",
    "processor_s",
    "not_sampled_s",
    "lost_s",
    "kernel_s",
    "late_s",
)
"""Names of the numbers of a Summary that are added up when recordings are merged."""


def summed(parts: Sequence[Summary]) -> Summary:
    """Add up the numbers in the summaries of several recordings. Counts of stacks and frames are left out, because
    summary_of_part() computes them from the merged samples.
    """
    seconds = sum(part.duration_s for part in parts) or 1.0
    return replace(
        Summary(),
        duration_s=round(sum(part.duration_s for part in parts), 6),
        **{name: round(sum(getattr(part, name) for part in parts), 6) for name in _SUMS},
        rate_wanted=max(part.rate_wanted for part in parts),
        rate_reached=round(sum(part.rate_reached * part.duration_s for part in parts) / seconds, 3),
        errors=dict(sum((Counter(part.errors) for part in parts), Counter[str]())),
        stops=_stops(parts, seconds),
        modules=_added_problems(parts),
        profiler_max_rss_kb=max(part.profiler_max_rss_kb for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        functions_missing=tuple(missing for part in parts for missing in part.functions_missing),
        children=_added(Children, [part.children for part in parts]),
        languages=tuple(dict.fromkeys(language for part in parts for language in part.languages)),
        names=replace(
            _added(NameCounts, [part.names for part in parts]), kept_bytes=max(part.names.kept_bytes for part in parts)
        ),
    )


def _added(kind: Any, values: Sequence[Any]) -> Any:
    return kind(*(sum(getattr(value, name) for value in values) for name in field_names(kind)))


def _stops(parts: Sequence[Summary], seconds: float) -> Stops:
    """Return the pauses of the target in several recordings together, with their share of `seconds`.

    The median is the mean of the recordings' medians, weighted by their stops; the maximum is exact.
    """
    count = sum(part.stops.count for part in parts)
    middle = sum(part.stops.p50_us * part.stops.count for part in parts) / max(count, 1)
    share = sum(part.stops.share * part.duration_s for part in parts) / seconds
    most = {name: max(getattr(part.stops, name) for part in parts) for name in ("p99_us", "max_us")}
    return Stops(count, round(middle, 3), share=round(share, 9), **most)


def _added_problems(parts: Sequence[Summary]) -> tuple[ModuleSummary, ...]:
    """Return one entry for each module path, with its problems in all recordings."""
    found: dict[str, dict[Problem, None]] = {}
    for part in parts:
        for module in part.modules:
            found.setdefault(module.path, {}).update(dict.fromkeys(module.problems))
    return tuple(ModuleSummary(path, "", 0, tuple(problems)) for path, problems in found.items())
