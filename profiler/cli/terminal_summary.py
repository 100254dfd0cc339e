"""The summary of a recording in the terminal: where the time went, how good the data is, what is missing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping

from pyprof.cli.number_and_name_format import (
    duration,
    function_names,
    keep_apart,
    many,
    module_names,
    percent,
    shorten,
    shorten_middle,
)
from pyprof.cli.terminal_output import advice, printable
from pyprof.cli.terminal_tables import NATIVE_INCLUDED, FunctionTables, function_tables
from pyprof.model.analysis.function_costs import Cost, lock_costs, process_costs
from pyprof.model.analysis.idle_waits import MODES as IDLE_MODES
from pyprof.model.loss_reason_texts import ENDS, counted, counter_title, end_title, lacking
from pyprof.model.profile import Profile
from pyprof.model.summary import ENOUGH_SAMPLES, MUCH, NOT_SAMPLED_LABEL, ModuleSummary, Summary, lacks
from pyprof.model.unwind_result import StackEnd, Trust

TOP = 5
NATIVE = PROCESSES = 3
"""Number of rows in the summary's table of native functions, which follows that of an interpreter's functions. The
table of processes (PROCESSES) has as many.
"""
_LABEL, _MODULE = 9, 22
_SOURCES = frozenset({"by_stops", "by_stops_in_part", "by_stepping", "by_events", "by_program", "by_program_because"})
"""Ids of the notes about the source of the samples. The summary puts them into the line about the samples."""
_ABOUT_SAMPLES = frozenset({"never_stopped", "sleepers_from_outside"})
"""Ids of notes about samples that have no separate line in the summary."""
_WHAT = {"cpu": "processor time", "wall": "time", "offcpu": "time off the processor", "lock": "time in locks"}
_SHOWN_MISSING = 0.01
"""Minimum share of unsampled time for a row in the summary's first table, and for splitting the processor time by
reason.
"""
_MISSING_ROW = "[not sampled]"
_LOST = ("samples_lost",)
"""Names of the counters of lost samples whose time Summary.lost_s states."""
_ADVISED_HZ = (199, 499, 999)
_SLOW = 0.95
"""Fraction of the requested sampling rate below which the summary states the rate that was reached."""
_NAMELESS = "code_without_names"
"""Id of the problem that generated (JIT) code has no names."""
_NO_SYMBOLS = frozenset({"exported_names_only", "no_time_for_names"})
"""Ids of the problems of modules whose functions have no names."""


def report(profile: Profile, width: int, page: bool, verbose: bool) -> list[str]:
    """Return the lines of a recording's summary, the most important first, each of at most `width` characters.

    Args:
        page: True if an HTML page was written, which has the details too.
    """
    summary = profile.summary
    lines = [*_warnings(summary, width), f"pyprof: {_title(profile)}"]
    if summary.samples:
        lines += [
            *_locks(profile, width),
            *_tables(function_tables(profile, summary.is_small), profile, width),
            "",
            *_labelled("how", _sampled(summary), width),
        ]
        if summary.is_small:
            lines += _labelled("few", _more_samples(summary), width)
        if time := _processor_time(summary):
            lines += _labelled("time", time, width)
        if summary.shown.total:
            lines += _labelled("quality", _quality(summary), width)
    for note in summary.notes[1:] if summary.samples else summary.notes:
        if note.reason not in (_ABOUT_SAMPLES if summary.samples else _ABOUT_SAMPLES | _SOURCES):
            lines += _labelled("note", advice(note.text), width)
    if missing := _missing(summary):
        where = "" if verbose else ": see Summary in the page, or --verbose" if page else ": --verbose says more"
        lines += _labelled("missing", missing + where, width)
    lines += _details(summary, width) if verbose else []
    pids = sorted({thread.pid for thread in profile.threads})
    return [line.replace("doctor PID", f"doctor {pids[0]}") for line in lines] if len(pids) == 1 else lines


def brief(profile: Profile) -> str:
    """Return a one-line summary of a window. Only the first window of a recording has a longer summary."""
    shown = profile.summary.shown
    native = "native " if profile.summary.not_shown else ""
    whole = percent(_whole(profile.summary), shown.total)
    return f"pyprof: {_title(profile)}, {many(profile.summary.samples, 'sample')}, {whole} in whole {native}stacks"


def _title(profile: Profile) -> str:
    shown, seconds = profile.summary.shown, duration(profile.duration_ns)
    if shown.unit != "nanoseconds" or not profile.summary.samples:
        return f"{profile.title}, {seconds}"
    return f"{profile.title}: {duration(shown.total)} of {_WHAT.get(shown.type, shown.type)} in {seconds}"


def _warnings(summary: Summary, width: int) -> list[str]:
    lines = []
    for warning in summary.warnings:
        lines += wrapped(f"pyprof: {warning.text}", width, "  ")
    return lines


def _locks(profile: Profile, width: int) -> Iterator[str]:
    """Yield the lines of the table of locks for which threads waited."""
    if found := lock_costs(profile):
        yield ""
        yield _row("lock", "waited for; below: functions of who waited, and of who gave it up", "", width)
        for title, value in found[:TOP]:
            yield _row(percent(value, profile.total), printable(title), "", width)


def _tables(found: FunctionTables, profile: Profile, width: int) -> Iterator[str]:
    """Yield the lines of the summary's tables of functions. They have shares of the shown time, or numbers of samples
    if there are few.
    """
    summary, whole = profile.summary, profile.total
    amount = "{:,}".format if summary.is_small else _share(whole)
    of = f"of {duration(whole)}: " if summary.shown.unit == "nanoseconds" else ""
    of = "samples: " if summary.is_small else of
    missing = summary.shown.ends.get(NOT_SAMPLED_LABEL, 0)
    own, total = found.functions.by_own(TOP), found.functions.application_first(TOP)
    mixed = len({cost.application for cost in found.functions.functions}) > 1
    callees = NATIVE_INCLUDED if found.is_interpreted else ""
    first = "; the application's functions first" if mixed else ""
    native = ("native", "in native functions, whoever called them")
    if summary.shown.type in IDLE_MODES:
        native = ("wait", "what was waited for, in whatever function")
    tables: tuple[tuple[str, str, list[tuple[Cost, int]]], ...] = (
        ("self", f"{of}in the function itself{callees}", [(cost, cost.own) for cost in own]),
        ("total", f"with what it calls{first}", [(cost, cost.total) for cost in total]),
        (*native, [(cost, cost.own) for cost in found.native[:NATIVE]]),
    )
    for heading, meaning, rows in tables:
        if rows:
            yield ""
            yield _row(heading, meaning, "", width)
            names = function_names([printable(cost.name) for cost, _ in rows], width - _LABEL - 3 - _MODULE)
            modules = module_names([printable(cost.module) for cost, _ in rows], _MODULE)
            for (_, value), name, module in zip(rows, names, modules, strict=True):
                yield _row(amount(value), name, module, width)
            if heading == "self" and missing > _SHOWN_MISSING * whole:
                yield _row(duration(missing) if summary.is_small else percent(missing, whole), _MISSING_ROW, "", width)
    if len(processes := process_costs(profile)) > 1:
        yield ""
        yield _row("process", "with all its threads", "", width)
        rows_of, room = processes[:PROCESSES], width - _LABEL - 3 - _MODULE
        full = [printable(cost.name or "[unnamed]") for cost in rows_of]
        names = keep_apart(full, [shorten_middle(name, room) for name in full], room)
        for cost, name in zip(rows_of, names, strict=True):
            pids = f"pid {cost.pids[0]}" if len(cost.pids) == 1 else many(len(cost.pids), "process", "processes")
            share = duration(cost.value) if summary.is_small else percent(cost.value, whole)
            yield _row(share, name, pids, width)


def _share(whole: float) -> Callable[[float], str]:
    return lambda value: percent(value, whole)


def _more_samples(summary: Summary) -> str:
    """Return a sentence that says how few samples there are, and which options of `pyprof record` would take enough."""
    times = -(-ENOUGH_SAMPLES // summary.samples)
    if 0 < 2 * summary.rate_reached < summary.rate_wanted:  # a higher rate would not be reached either
        longer = f"pyprof record -d {math.ceil(summary.duration_s * times)} …"
        return f"{many(summary.samples, 'sample')}: too few for percentages. For more: {longer}"
    rate_hz = next((rate for rate in _ADVISED_HZ if rate >= summary.rate_wanted * times), _ADVISED_HZ[-1])
    more = f"-r {rate_hz}" if rate_hz > summary.rate_wanted else ""
    if summary.rate_wanted * times > rate_hz:
        seconds = summary.duration_s * times * summary.rate_wanted / max(rate_hz, summary.rate_wanted)
        more = f"{more} -d {math.ceil(seconds)}".strip()
    return f"{many(summary.samples, 'sample')}: too few for percentages. For more: pyprof record {more} …"


def _processor_time(summary: Summary) -> str:
    """Describe the processor time that the kernel counted as the sum of sampled time and unsampled time, the latter by
    reason.

    The text is empty if nearly all of the time was sampled, or if it is not known.
    """
    spent, missing = summary.processor_s, summary.not_sampled_s
    if missing <= _SHOWN_MISSING * spent:
        return ""
    short = summary.not_sampled_s - summary.lost_s - summary.kernel_s
    is_late = any(note.reason == "too_short_or_late" for note in summary.notes)
    reasons = (
        (short, "ran too briefly, or while pyprof was late" if is_late else "ran too briefly"),
        (summary.lost_s, "in lost records"),
        (summary.kernel_s, "in the kernel"),
    )
    parts = ", ".join(f"{seconds:.2f} s {reason}" for seconds, reason in reasons if seconds >= 0.005)
    sampled = max(round(spent, 2) - round(missing, 2), 0)  # the reader adds what is printed
    return f"{spent:.2f} s of processor time: {sampled:.2f} s sampled, {missing:.2f} s not ({parts})"


def _row(share: str, name: str, module: str, width: int) -> str:
    room = width - _LABEL - 3 - (_MODULE if module else 0)
    return f"  {share:>{_LABEL - 2}}  {shorten(name, room):<{room}} {shorten(module, _MODULE)}".rstrip()


def _sampled(summary: Summary) -> str:
    """Return a sentence about the samples of a recording: how they were taken, how many there are, and what they cost
    the target.
    """
    notes = {note.reason: advice(note.text) for note in summary.notes[:2]}
    first = next(iter(notes), "")
    slow = 0 < summary.rate_reached < _SLOW * summary.rate_wanted
    times = many(summary.samples, "sample") + f" of {many(summary.threads, 'thread')}"
    if slow:
        times += f", {_rate(summary.rate_reached)} a second instead of {summary.rate_wanted:g}"
    how = notes[first].removeprefix("Sampled ").rstrip(".") if first in _SOURCES else ""
    if how and "never_stopped" in notes:
        how += ": the target was never stopped"
    stops = summary.stops
    if stops.count >= summary.samples and first == "by_events":
        how = "by short stops"
    elif stops.count and first == "by_events":
        times += f", {percent(stops.count, summary.samples)} by short stops, the others"
    if slow and how:
        times += ","
    price = ""
    if stops.count:
        price = f"; {many(stops.count, 'stop')} of {stops.p50_us:.0f} µs, {percent(stops.share, 1)} of the time"
    return times + (f" {how}" if how else "") + price + (f". {notes[first]}" if first and not how else "")


def _rate(hz: float) -> str:
    return f"{hz:.0f}" if hz >= 100 else f"{hz:.3g}"


def _quality(summary: Summary) -> str:
    """Return a sentence about the share of complete stacks in the shown time."""
    shown = summary.shown
    not_shown = summary.not_shown
    apart = {StackEnd.ROOT.label, *map(lacks, not_shown)}
    whole = percent(_whole(summary), shown.total)
    others = sorted((-value, name) for name, value in shown.ends.items() if name not in apart)
    first = [f"{whole} of the native stacks are whole" if not_shown else f"{whole} of the time in whole stacks"]
    for language, value in not_shown.items():
        share = "" if value >= (1 - MUCH) * shown.total else f" ({percent(value, shown.total)} of the time)"
        first.append(f"{language} functions are not shown{share}")
    parts = [f"{percent(-value, shown.total)} {end_title(name)}" for value, name in others]
    if _may_be_guessed(summary):
        parts.append("--scan guesses what is outside of code made at run time")
    return "; ".join([*first, *parts])


def _whole(summary: Summary) -> int:
    return summary.shown.ends.get(StackEnd.ROOT.label, 0) + sum(summary.not_shown.values())


def _may_be_guessed(summary: Summary) -> bool:
    """Return True if `--scan` could guess further frames, because stacks end in JIT code that has neither unwind rules
    nor a description.
    """
    cut, made = summary.shown.ends.get(StackEnd.NO_RULE.label, 0), [m for m in summary.modules if _nameless(m)]
    return bool(made) and cut >= MUCH * summary.shown.total > 0 and not summary.trust.get(Trust.SCAN.label)


def _nameless(module: ModuleSummary) -> bool:
    return any(problem.reason == _NAMELESS for problem in module.problems)


def _missing(summary: Summary) -> str:
    lacks = [module for module in summary.modules if module.problems]
    without = [m for m in lacks if any(problem.reason in _NO_SYMBOLS for problem in m.problems)]
    made = {m.path: problem for m in lacks for problem in m.problems if problem.reason == _NAMELESS}
    parts = []
    if made:
        share = percent(sum(module.own for module in lacks if module.path in made), summary.shown.total)
        ways = " or ".join(sorted({problem.hint for problem in made.values()} - {""}))
        parts.append(f"names of code made at run time ({share} of the time{'; ' if ways else ''}{ways})")
    if without:
        own = sum(module.own for module in without)  # zero if the time is the kernel's: sleeps
        share = f" ({percent(own, summary.shown.total)} of the time)" if own else ""
        parts.append(f"symbols of {many(len(without), 'module')}{share}")
    if more := len(lacks) - len(without) - len(made):
        parts.append(f"{many(more, 'module')} with other problems")
    # The time of lost samples is in the line on processor time.
    errors = {name: count for name, count in summary.errors.items() if not (name in _LOST and summary.lost_s)}
    return ", ".join([*parts, *lacking(errors)])


def _details(summary: Summary, width: int) -> list[str]:
    lines = ["", "details"]
    skipped = f", {many(summary.skipped, 'sampling time')} skipped" if summary.skipped else ""
    lines += _labelled("rate", f"{summary.rate_reached:.1f} of {summary.rate_wanted:g} a second{skipped}", width)
    stops = summary.stops
    if stops.count:
        text = (
            f"{many(stops.count, 'stop')}: half of them under {stops.p50_us:.0f} µs, 99 % under {stops.p99_us:.0f} µs"
        )
        lines += _labelled("stops", f"{text}, the longest {stops.max_us:.0f} µs", width)
    if summary.unchanged or summary.blocked:
        text = f"{summary.unchanged:,} samples of threads that had not run, {summary.blocked:,} read from outside"
        lines += _labelled("no stop", text, width)
    for label, counts in (("stacks", _words(summary.ends)), ("frames", summary.trust)):
        if counts:
            lines += _labelled(label, ", ".join(f"{n:,} {name}" for name, n in counts.items()), width)
    for name, count in summary.errors.items():
        lines += ["", *wrapped(f"  {count:,} × {counter_title(name)}", width, "    ")]
        if found := counted(name):
            lines += wrapped(f"    {found.meaning}", width, "    ")
    return lines + lacking_modules(summary)


def lacking_modules(summary: Summary) -> list[str]:
    """Return lines that say for each object file what is missing, such as symbols. Each hint is given once."""
    lines = []
    for module in (module for module in summary.modules if module.problems):
        lines += ["", f"  {module.path}"]
        texts: dict[str, list[str]] = {}
        for problem in module.problems:
            texts.setdefault(problem.hint, []).append(f"    {problem.text}")
        for hint, found in texts.items():
            lines += [*found, *([f"      {advice(hint)}"] if hint else [])]
    return lines


def _words(ends: Mapping[str, int]) -> dict[str, int]:
    return {ENDS[name].title if name in ENDS else name: count for name, count in ends.items()}


def _labelled(label: str, text: str, width: int) -> list[str]:
    return wrapped(f"  {label:<{_LABEL}} {text}", width, " " * (_LABEL + 3))


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Break a text into lines of at most `width` characters, and indent all lines but the first."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
