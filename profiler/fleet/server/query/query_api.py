"""The responses of the query interface: values for JSON, and profiles in every format. docs/server.md has the
parameters.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from pyprof.errors import UsageError
from pyprof.exporters import registry
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.query.profile_queries import ClientQueries
from pyprof.fleet.server.query.sample_selection import LABEL, SampleQuery, selection, whole_number
from pyprof.fleet.server.query.time_line import Coverage, add_idle_time, lines_by_label, total_line
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.confidence_interval import CONFIDENCE, SamplingBasis
from pyprof.model.analysis.function_costs import Function, costs, functions_of
from pyprof.model.profile import Frame, Profile

_MAX_ROWS, _MAX_POINTS, _MAX_LINES = 1000, 2000, 12
_FUNCTIONS, _POINTS = 100, 240
_SERVICES_NAMED = 5
_DIGITS = 6
"""Number of decimal digits to which responses round shares and their confidence bounds: database engines add up
floating-point numbers in different orders.
"""
Words = Mapping[str, str]
Answer = dict[str, Any]
WORDS: Mapping[str, frozenset[str]] = {
    "services": frozenset({"limit", "compare", LABEL}),
    "labels": frozenset(),
    "timeline": frozenset({"by", "points", LABEL}),
    "functions": frozenset({"limit", LABEL}),
    "builds": frozenset({"limit"}),
    "profile": frozenset({"format", LABEL}),
    "diff": frozenset({"format", LABEL}),
}
"""Parameters that each query accepts besides service, type and span. LABEL stands for all parameters that select
samples by labels. The server refuses other parameters, because ignoring one would make the response wrong.
"""
SIDES: Mapping[str, tuple[str, ...]] = {"diff": ("a.", "b.")}
"""Prefixes of the parameters of queries with several selections. The query diff has two: "a." and "b."."""


def services(store: ClientQueries, tenant: str, words: Words) -> Answer:
    """Answer a query with the amounts of all services, the highest rate first.

    The parameter `compare` is a number of seconds. `before` is then the amount in a span of the same length that many
    seconds earlier, null for services without a window in it.
    """
    chosen = selection(tenant, words)
    limit, earlier_s = whole_number(words, "limit", _MAX_ROWS, _MAX_ROWS), whole_number(words, "compare", 1, 10**8)
    found, rates = store.services(chosen), store.rates(chosen)
    found.sort(key=lambda row: -rates[row.service].per_second if row.service in rates else 0.0)
    by_ns = earlier_s * 10**9
    earlier = replace(chosen, from_ns=max(chosen.from_ns - by_ns, 0), to_ns=max(chosen.to_ns - by_ns, 1))
    before = {row.service: row.amount for row in store.services(earlier)} if "compare" in words else {}
    rates_before = store.rates(earlier) if "compare" in words else {}
    rows = [
        {
            "service": row.service,
            "amount": row.amount,
            "before": before.get(row.service),
            "rate": rates[row.service].per_second if row.service in rates else None,
            "rate_before": rates_before[row.service].per_second if row.service in rates_before else None,
            "recorded": rates[row.service].recorded_s if row.service in rates else None,
            "hosts": row.hosts,
            "windows": row.windows,
            "windows_without_host": row.windows_without_host,
        }
        for row in found[:limit]
    ]
    rest = _rest([row.amount for row in found[limit:]])
    return {"unit": found[0].unit if found else "nanoseconds", "services": rows, "rest": rest}


def _rest(amounts: list[int]) -> dict[str, int] | None:
    return {"count": len(amounts), "amount": sum(amounts)} if amounts else None


def labels(store: ClientQueries, tenant: str, words: Words) -> Answer:
    found: dict[str, set[str]] = {}
    for each in store.labels(selection(tenant, words)).values():
        for name, value in each:
            found.setdefault(name, set()).add(value)
    return {"labels": {name: sorted(values)[:_MAX_ROWS] for name, values in sorted(found.items()) if name != "service"}}


def timeline(store: ClientQueries, tenant: str, words: Words) -> Answer:
    """Answer a query with the amounts and rates of each time step: one line for each value of the label `by`, largest
    first.

    Both are null for a time step without a window of that value: a host that was not recorded did not use zero seconds.
    For labels other than the host, it is not known whether a value without samples was recorded. A step is at least
    half a typical window, so a missing window is seen.
    """
    chosen, points = selection(tenant, words), whole_number(words, "points", _POINTS, _MAX_POINTS)
    unit, typical_ns = store.windows(chosen)
    step_ns = max(chosen.length_ns // points, typical_ns // 2, 10**9)
    found, by = store.host_steps(chosen, step_ns), words.get("by", "")
    coverage = Coverage(found, step_ns)
    if not by and not chosen.labels:
        lines = {"": total_line(found)}
    else:
        lines = lines_by_label(store.series_steps(chosen, step_ns), store.labels(chosen), chosen.labels, by)
        hosts = [value for name, value in chosen.labels if name == "host"]
        if len(hosts) == len(chosen.labels) and by in ("", "host"):
            add_idle_time(lines, coverage, {value: (value if by else hosts[0]) for value in lines})
    steps = range(-(-chosen.length_ns // step_ns))
    ordered = sorted(lines.items(), key=lambda line: (-line[1].total, line[0]))
    series = [
        {
            "value": value,
            "amounts": [line.amount(step) for step in steps],
            "rates": [_significant(line.rate(step, coverage)) for step in steps],
        }
        for value, line in ordered[:_MAX_LINES]
    ]
    times = [(chosen.from_ns + (step + 0.5) * step_ns) / 1e9 for step in steps]
    rest = _rest([line.total for _, line in ordered[_MAX_LINES:]])
    return {"unit": unit, "step": step_ns / 1e9, "times": times, "series": series, "rest": rest}


def _significant(rate: float | None) -> float | None:
    """Return a rate without the digits that depend on the order in which the hosts' rates were added."""
    return None if rate is None else float(f"{rate:.9g}")


def functions(store: ClientQueries, tenant: str, words: Words) -> Answer:
    """Answer a query with the most expensive functions: those of the highest own cost, then those of the highest total
    cost.

    own_range and total_range contain the true share of the function with 95 % probability. They and `ranges`, which
    describes the method, are null if values are measured and not sampled. `unsampled` is the part of `total` that
    belongs to no function, because no sample stands for it.
    """
    limit = whole_number(words, "limit", _FUNCTIONS, _MAX_ROWS)
    profile, basis = store.profile_with_basis(selection(tenant, words), by_service=True)
    found = costs(profile)
    rows = list(dict.fromkeys((*found.by_own(limit), *found.by_total(max(limit // 4, 1)))))
    of_function = _services_of(profile)
    shown = [
        {
            "function": cost.name,
            "module": cost.module,
            "own": cost.own,
            "total": cost.total,
            "own_range": _range(basis, cost.own, found.value),
            "total_range": _range(basis, cost.total, found.value),
            "services": (own := of_function.get(cost.function, []))[:_SERVICES_NAMED],
            "more_services": max(len(own) - _SERVICES_NAMED, 0),
        }
        for cost in rows
    ]
    rest = _rest([cost.own for cost in found.functions if cost not in set(rows)])
    unit, samples = profile.value_types[-1].unit, None if basis is None else round(basis.samples)
    unsampled = 0 if basis is None else round((1 - basis.sampled) * found.value)
    head = {"unit": unit, "total": found.value, "unsampled": unsampled, "samples": samples, "ranges": _ranges(basis)}
    return {**head, "functions": shown, "rest": rest}


def _range(basis: SamplingBasis | None, part: int, whole: int) -> list[float] | None:
    """Return the confidence interval of a share, None if the share is measured and not sampled."""
    return None if basis is None else [round(bound, _DIGITS) for bound in basis.interval(part / whole)]


def _ranges(basis: SamplingBasis | None) -> Answer | None:
    """Return a description of the method by which the confidence intervals of shares were computed, None if there are
    none.
    """
    if basis is None:
        return None
    sampled, width = round(basis.sampled, _DIGITS), round(basis.half_width, _DIGITS)
    return {"method": "wilson", "confidence": CONFIDENCE, "sampled": sampled, "half_width": width}


def _services_of(profile: Profile) -> dict[object, list[str]]:
    """Return for each function the services in which it has own cost, most expensive first."""
    sums: dict[object, dict[str, int]] = {}
    frame = profile.frame.tolist()
    innermost = [_innermost(profile, each) for each in profile.frames]
    for node, thread, value in zip(
        profile.stack.tolist(), profile.thread.tolist(), profile.values[:, -1].tolist(), strict=True
    ):
        function = innermost[frame[node]] if node else None
        if function is not None:
            own = sums.setdefault(function, {})
            name = profile.threads[thread].name
            own[name] = own.get(name, 0) + value
    return {function: sorted(own, key=lambda name: (-own[name], name)) for function, own in sums.items()}


def _innermost(profile: Profile, frame: Frame) -> Function | None:
    found = functions_of(profile, frame)
    return found[-1][0] if found else None


def builds(store: ClientQueries, tenant: str, words: Words) -> Answer:
    chosen, limit = selection(tenant, words), whole_number(words, "limit", _FUNCTIONS, _MAX_ROWS)
    found = store.builds(chosen)
    rows = [
        {
            "path": path,
            "build_id": build_id,
            "amount": amount,
            "unnamed": unnamed,
            "cut": cut,
            "symbols": (has_symbols := store.has_symbols(tenant, build_id)),
            "hint": _hint(path, build_id, unnamed, has_symbols),
        }
        for path, build_id, amount, unnamed, cut in found[:limit]
    ]
    return {"unit": store.windows(chosen)[0], "builds": rows, "rest": _rest([row[2] for row in found[limit:]])}


def _hint(path: str, build_id: str, unnamed: int, has_symbols: bool) -> str:
    """Return a sentence that says how to get names for the functions of an object file. It is "" if no name is missing
    or no way is known.
    """
    if not unnamed or has_symbols:
        return ""
    if path.startswith(("[anon", "//anon", "[JIT")) or not path:
        return "code generated at run time: a perf map or jitdump of the JIT names it"
    return f"debuginfod-find debuginfo {build_id}" if build_id else ""


def profile(store: ClientQueries, tenant: str, words: Words) -> tuple[bytes, str, str]:
    """Answer a query with a profile as a file: return its contents, its media type and its name."""
    chosen = selection(tenant, words)
    try:
        format_of = registry.find_format(words.get("format", "") or registry.DEFAULT.name)
    except UsageError as error:
        raise Refused("bad_question", f"{error}: {error.hint}") from None
    if format_of.name == registry.RECORDING:
        data = _recording(store.profile(chosen))
    else:
        out = io.BytesIO()
        format_of.write(store.profile(chosen), out, ExportOptions(evidence=True))
        data = out.getvalue()
    kind = "text/html; charset=utf-8" if format_of is registry.DEFAULT else "application/octet-stream"
    return data, kind, f"{_file_name(chosen)}{format_of.suffixes[0]}"


def _recording(found: Profile) -> bytes:
    """Return a profile as the bytes of a recording file. The recording is an SQLite database, which has to be written
    to disk.
    """
    import os
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pyprof-") as folder:
        path = os.path.join(folder, "x.pyprof")
        found.save(path)
        with open(path, "rb") as file:
            return file.read()


def _file_name(chosen: SampleQuery) -> str:
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in chosen.service or "fleet")
    return f"{name[:60]}-{chosen.from_ns // 10**9}"


def diff(store: ClientQueries, tenant: str, words: Words) -> tuple[bytes, str, str]:
    """Answer a query that compares two selections, whose parameters begin with a. and b. Costs are per second of
    recorded time.

    The parameter `format` is html, json or csv.
    """
    from pyprof.exporters.comparison_file import find_writer

    first, second = selection(tenant, words, "a."), selection(tenant, words, "b.")
    if first.type != second.type:
        raise Refused("bad_question", f"{first.type} and {second.type} cannot be compared: a.type differs from b.type")
    name = words.get("format", "") or "html"
    try:
        writer = find_writer("", name)
        found = store.profile_by_windows(first).diff(store.profile_by_windows(second), normalize="time")
    except UsageError as error:
        raise Refused("bad_question", str(error)) from None
    out = io.BytesIO()
    writer(found, out)
    kind = "text/html; charset=utf-8" if name == "html" else "application/json" if name == "json" else "text/csv"
    return out.getvalue(), kind, f"diff.{name}"
