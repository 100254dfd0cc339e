"""`pyprof agent status`: health of the agent, contents of the spool, files without names, and waiting segments."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyprof.agent.config import AgentConfig
from pyprof.agent.sink_queues import QueueState, forget, queues
from pyprof.agent.spool_status import SpoolState, Unnamed, state
from pyprof.agent.time_parsing import TimeSpan, moment
from pyprof.cli.agent_connection import NoAgent, agent_state
from pyprof.cli.number_format import duration
from pyprof.cli.terminal_output import advice, json, line, printable
from pyprof.errors import PyprofError, RecordingError, UsageError
from pyprof.records import field_names, is_record

_SHOWN = ("reason", "error", "remedy", "since_seconds", "sink", "cause", "mode", "rate")
"""Fields of a condition that have a place in the lines of a condition."""


def status(arguments: argparse.Namespace, config: AgentConfig, root: str) -> None:
    """Print the state of a running or ended agent.

    Raises:
        RecordingError: The spool cannot be read.
        UsageError: An option is wrong.
    """
    sinks = [target.name for target in config.pushes]
    try:
        if arguments.forget is not None:
            line(_forget(root, arguments, sinks))
            return
        waiting = queues(root)
    except OSError as error:
        raise RecordingError(f"{error.filename or root} cannot be read: {error.strerror}") from None
    now = datetime.datetime.now()
    found = state(root, TimeSpan(moment(arguments.since, now), moment("now", now)))
    agent = _agent(root)
    if arguments.json:
        spool = {"path": root, "since": arguments.since, **_plain(found), "queues": _plain(tuple(waiting))}
        json({"agent": agent, "spool": spool})
        return
    for text in _lines(agent, found, waiting, root, arguments, sinks):
        line(text)


def _lines(
    agent: Mapping[str, Any],
    found: SpoolState,
    waiting: list[QueueState],
    root: str,
    arguments: argparse.Namespace,
    sinks: list[str],
) -> Iterator[str]:
    yield from _health(agent)
    yield ""
    if found.services:
        yield from _services(found, root, arguments.since)
    else:
        yield f"{root}: no segment since {arguments.since}"
    if found.unnamed:
        yield ""
        yield "time without names of functions, by file:"
        for each in found.unnamed:
            yield from _unnamed(each)
    if waiting:
        yield ""
        yield from _queues(waiting, sinks if arguments.config is not None else None)


def _plain(value: Any) -> Any:
    """Return dataclasses as dicts, and tuples of them as lists, for JSON."""
    if is_record(type(value)):
        return {name: _plain(getattr(value, name)) for name in field_names(type(value))}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _agent(root: str) -> dict[str, Any]:
    """Return the state of the running agent. If there is none, or it may not be asked, the status says so."""
    try:
        return agent_state(root)
    except NoAgent as error:
        return {"status": "not_running", "error": error.message, "remedy": error.hint, "failures": []}
    except PyprofError as error:
        return {"status": "unknown", "error": error.message, "remedy": error.hint, "failures": []}


def _health(agent: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about the agent, and lines about each condition that holds."""
    if "error" in agent:
        yield f"agent: {str(agent['status']).replace('_', ' ')}: {printable(agent['error'])}"
        return
    budget = agent["budget"]
    cost = f"{budget['own_cpu_percent']:g} % of a processor ({budget['budget_cpu_percent']:g} % allowed)"
    memory = f"{budget['own_memory'] / 1e6:.0f} MB ({budget['budget_memory'] / 1e6:.0f} allowed)"
    used = f"1 of {budget['one_sampling_time_in']} sampling times, 1 of {budget['one_process_in']} processes"
    yield f"agent: {agent['status']}, {cost}, {memory}, {used}"
    for each in agent["failures"]:
        place = "".join(f" {each[name]}" for name in ("sink", "mode", "rate", "cause") if name in each)
        since = duration(1e9 * each["since_seconds"])
        yield f"  {each['reason']}{printable(place)}, for {since}: {printable(each['error'])}"
        more = [f"{name} {value}" for name, value in each.items() if name not in _SHOWN and name not in budget]
        if more:
            yield f"    {printable(', '.join(more))}"
        yield f"    hint: {printable(advice(each['remedy']))}"


def _forget(root: str, arguments: argparse.Namespace, sinks: list[str]) -> str:
    """Delete the queue of a former sink, and return a line about it."""
    sink = arguments.forget
    if arguments.config is None:
        raise UsageError("--forget must see which sinks are configured", "--config FILE")
    if sink in sinks:
        raise UsageError(
            f"{sink} is configured", "without its [[push]], and SIGHUP for the agent, before it is forgotten"
        )
    count = forget(root, sink)
    return f"{count:,} segments waited for {printable(sink)}, which is forgotten; those in the spool stay"


def _services(found: SpoolState, root: str, since: str) -> Iterator[str]:
    yield f"{root}, since {since}:"
    yield f"{'segments':>9} {'KB':>7} {'samples':>9} {'each for':>9} {'whole':>8} {'newest':>12}  service"
    for each in found.services:
        whole = f"{100 * each.whole:.1f} %" if each.whole is not None else "-"
        kb = each.bytes / 1000
        counts = f"{each.segments:9,} {kb:7,.0f} {each.samples:9,} {each.stand_for:9.2f}"
        yield f"{counts} {whole:>8} {_age(each.newest_ns):>12}  {printable(each.service)}"


def _unnamed(each: Unnamed) -> Iterator[str]:
    build_id = f", build-id {printable(each.build_id)}" if each.build_id else ""
    yield f"{100 * each.share:6.1f} %  {printable(each.service)}: {printable(each.path)}{build_id}"
    for problem in each.problems:
        yield f"{'':10}{printable(problem.text)}"
        if problem.remedy:
            yield f"{'':12}{printable(advice(problem.remedy))}"


def _queues(waiting: list[QueueState], sinks: list[str] | None) -> Iterator[str]:
    """Yield the lines of the table of queues; sinks are the configured ones, None if no configuration was given."""
    yield f"{'waiting':>9} {'KB':>7} {'oldest':>12}  sink"
    for each in waiting:
        gone = sinks is not None and each.sink not in sinks
        more = f"  not configured: pyprof agent status --forget {each.sink}" if gone else ""
        oldest = _age(each.oldest_ns) if each.segments else "-"
        yield f"{each.segments:9,} {each.bytes / 1000:7,.0f} {oldest:>12}  {each.sink}{more}"


def _age(moment_ns: int) -> str:
    return f"{duration(max(time.time_ns() - moment_ns, 0))} ago"
