"""`pyprof agent install`, `status` and `resend`: the systemd unit, the state of the agent and its spool, and segments
to send again.
"""

from __future__ import annotations

import argparse
import datetime
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from pyprof.cli.number_and_name_format import duration, many
from pyprof.cli.terminal_output import advice, json, line, printable
from pyprof.errors import PyprofError, RecordingError, UsageError
from pyprof.exporters import output_file
from pyprof.fleet import systemd
from pyprof.fleet.agent import spool_query
from pyprof.fleet.agent.config import AgentConfig
from pyprof.fleet.agent.control_socket import NoAgent, agent_state
from pyprof.fleet.agent.push_sink_types import made
from pyprof.fleet.agent.spool_status import QueueState, SpoolState, Unnamed, forget, queues, state
from pyprof.fleet.toml_config_files import ConfigError, TimeSpan, moment
from pyprof.fleet.wire.push_response_verdicts import NotSent, RefusedForGood, SegmentSink, cause_and_hint
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import field_names, is_record
from pyprof.objfile.byte_source import open_regular

_CONFIG = "/etc/pyprof/agent.toml"


def make_folder(path: str) -> None:
    os.makedirs(path, 0o700, exist_ok=True)


def _own_command() -> list[str]:
    """Return the command that runs pyprof: the one-file executable if it has unpacked this interpreter, otherwise the
    interpreter with `-m pyprof`.
    """
    file = sys._xoptions.get("one_file")
    return [file] if isinstance(file, str) else [sys.executable, "-m", "pyprof"]


def install(
    config: AgentConfig, path: str | None, folder: str, make: Callable[[str], None] = make_folder
) -> Iterator[str]:
    """Write the agent's systemd unit into a folder, and yield lines that say what was done.

    Args:
        path: Path of the configuration.
        folder: Folder for the unit.
        make: Function that creates the spool's folder if it is not the default one, because the service does not create
            it.
    """
    if path is None:
        raise UsageError(
            "the service needs a configuration, which says whose processes it records",
            f"pyprof agent --print-config > {_CONFIG}, edit it, then: pyprof agent install --config {_CONFIG}",
        )
    command = [*_own_command(), "agent", "--config", os.path.abspath(path), "--log", "json"]
    spool = os.path.abspath(config.values.path) if config.values.path else ""
    if spool:
        command += ["--spool", spool]
    folders = [target.values["path"] for target in config.pushes if target.kind == "folder"]
    hosts = [target.values["url"] for target in config.pushes if target.kind != "folder"]
    try:
        text = systemd.agent_unit(command, [spool, *folders] if spool else folders, bool(hosts), config.values.group)
    except ValueError as error:
        raise UsageError(str(error)) from None
    to = os.path.join(folder, systemd.AGENT_UNIT_NAME)
    try:
        _write(to, text)
        if spool:
            make(spool)
    except OSError as error:
        reason = "it was not written by pyprof" if error.errno == errno.EEXIST else error.strerror
        raise UsageError(f"{to} cannot be written: {reason}", "--unit-dir DIR writes it elsewhere") from None
    yield f"wrote {to}"
    yield f"  it runs: {' '.join(command)}"
    yield "  as root, with nothing of root's rights but:"
    yield from (f"    {name:20} {meaning}" for name, meaning in systemd.AGENT_CAPABILITIES.items())
    reaches = f"may reach any host, to push to {', '.join(hosts)}" if hosts else "reaches no other host"
    yield f"  it writes to {', '.join([spool or '/var/lib/pyprof', *folders])} only, and {reaches}"
    if config.values.group:
        yield f"  members of {config.values.group} may ask it for recordings (pyprof agent record)"
    yield "  it has at most 500 MB, and little of the processors while others need them"
    yield "next: systemctl daemon-reload && systemctl enable --now pyprof-agent"


def _write(to: str, text: str) -> None:
    """Write the systemd unit file.

    Raises:
        OSError: Writing failed; EEXIST if there is a file that pyprof did not write.
    """
    if output_file.stat_entry(to) is not None:
        with open(open_regular(to), "rb") as file:
            known = file.read(len(systemd.AGENT_UNIT_MARK))
        if known != systemd.AGENT_UNIT_MARK.encode():
            raise FileExistsError(errno.EEXIST, "there is another file", to)

    def write(out: BinaryIO) -> None:
        os.fchmod(out.fileno(), 0o644)
        out.write(text.encode())

    output_file.replace_file(to, write)


_BY_NAME = ("pyprof", "folder", "bucket")
"""Types of sinks that recognise a segment by its name, so that a segment counts once however often it is sent."""
_TRIES = 60
"""Maximum number of attempts to send a segment to a receiver that requests a wait."""


def resend(arguments: argparse.Namespace, config: AgentConfig, root: str) -> Iterator[str]:
    """Send the segments since --since again to all sinks that recognise segments by their names. Yield two lines for
    each sink: what is to be sent, and what was sent.

    Raises:
        PyprofError: A sink does not take a segment, or the spool cannot be read.
        UsageError: No sink is configured that recognises segments.
    """
    targets = [target for target in config.pushes if target.kind in _BY_NAME]
    if not targets:
        raise UsageError(
            f"no sink of the types {', '.join(_BY_NAME)} is configured",
            "add a [[push]] of such a type to the file of --config FILE",
        )
    since_ns = moment(arguments.since, datetime.datetime.now())
    # windows from while the clock was ahead end in the future
    names = spool_query.segments(root, TimeSpan(since_ns, sys.maxsize))
    for target in targets:
        yield f"{target.name}: {many(len(names), 'segment')} since {arguments.since} to send"
        counts = _send_all(target.name, made(target), root, names)
        yield f"{target.name}: " + ", ".join(
            f"{count:,} {word}" for word, count in counts.items() if count or word == "sent"
        )


def _send_all(sink_name: str, sink: SegmentSink, root: str, names: Sequence[SegmentName]) -> dict[str, int]:
    """Send segments to a sink. Return how many the sink accepted, had already and refused for good, and how many the
    spool dropped meanwhile.

    Raises:
        PyprofError: The sink does not take a segment now.
    """
    counts = {"sent": 0, "there already": 0, "refused": 0, "dropped by the spool meanwhile": 0}
    for at, name in enumerate(names):
        try:
            with open(f"{root}/{name.path}", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            counts["dropped by the spool meanwhile"] += 1
            continue
        except OSError as error:
            raise PyprofError(f"{root}/{name.path} cannot be read: {error.strerror}") from None
        try:
            counts["there already" if _send(sink, name, data) is False else "sent"] += 1
        except RefusedForGood:
            counts["refused"] += 1
        except NotSent as error:
            cause, hint = cause_and_hint(error.word, error.stated)
            raise PyprofError(
                f"{sink_name} took {at:,} of {many(len(names), 'segment')}: {cause}: {error}",
                f"{hint}; then repeat the command",
            ) from None
        except OSError as error:
            raise PyprofError(f"{sink_name} took {at:,} of {many(len(names), 'segment')}: {error.strerror}") from None
    return counts


def _send(sink: SegmentSink, name: SegmentName, data: bytes) -> bool | None:
    """Send a segment to a sink. Repeat this after each wait that the receiver requests, up to _TRIES attempts.

    Returns:
        See SegmentSink.send().

    Raises:
        NotSent: The receiver does not accept the segment now.
        RefusedForGood: The receiver will never accept the segment.
        OSError: Writing failed.
    """
    for _ in range(_TRIES):
        try:
            return sink.send(name, data)
        except NotSent as error:
            if error.word != "limited":
                raise
            time.sleep(max(error.after_s, 1.0))
    return sink.send(name, data)


NOT_RUNNING = 3
"""Exit status of `pyprof agent status` if no agent runs; it equals that of `systemctl status`."""
_SHOWN = ("reason", "error", "hint", "since_seconds", "sink", "cause", "mode", "rate")
"""Fields of a condition that have a fixed place in its line of `pyprof agent status`. Other fields follow by name."""


def status(arguments: argparse.Namespace, config: AgentConfig, root: str, errors: Sequence[ConfigError] = ()) -> int:
    """Print the state of an agent, which may have ended. Return the exit status, which is NOT_RUNNING if no agent runs.

    Args:
        errors: Errors of the configuration, which are printed first.

    Raises:
        RecordingError: The spool cannot be read.
        UsageError: An option is wrong.
    """
    sinks = [target.name for target in config.pushes]
    try:
        if arguments.forget is not None:
            line(_forget(root, arguments, sinks))
            return 0
        waiting = queues(root)
    except OSError as error:
        raise RecordingError(f"{error.filename or root} cannot be read: {error.strerror}") from None
    now = datetime.datetime.now()
    found = state(root, TimeSpan(moment(arguments.since, now), moment("now", now)))
    agent = _agent(root)
    if arguments.json:
        spool = {"path": root, "since": arguments.since, **_plain(found), "queues": _plain(tuple(waiting))}
        plain = [{"line": each.line, "error": each.text} for each in errors]
        json({"configuration_errors": plain, "agent": agent, "spool": spool})
    else:
        for wrong in errors:
            line(f"{arguments.config}: {wrong}")
        for text in _lines(agent, found, waiting, root, arguments, sinks):
            line(text)
    return NOT_RUNNING if agent["status"] == "not_running" else 0


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
        taken = {sink["sink"]: sink["taken_seconds_ago"] for sink in agent.get("sinks", ())}
        yield from _queues(waiting, sinks if arguments.config is not None else None, taken)


def conditions() -> Iterator[str]:
    """Yield lines about each condition that an agent can have: the responses of /healthz and /readyz, its meaning, and
    a hint.
    """
    from pyprof.fleet.agent.health import NOT_READY, UNHEALTHY
    from pyprof.model.fleet_loss_reasons import CONDITIONS

    for each in CONDITIONS:
        codes = (503 if each.name in red else 200 for red in (UNHEALTHY, NOT_READY))
        yield "{} (/healthz {}, /readyz {})".format(each.name, *codes)
        yield f"  {each.sentence}"
        yield f"  hint: {advice(each.hint)}"


def refusals() -> Iterator[str]:
    """Yield lines about each reason for which the agent refuses a request for a recording: its meaning, and a hint."""
    from pyprof.model.fleet_loss_reasons import ASKS

    for each in ASKS:
        yield each.name
        yield f"  {each.sentence}"
        if each.hint:
            yield f"  hint: {advice(each.hint)}"


def _plain(value: Any) -> Any:
    """Convert dataclasses to dicts and tuples of dataclasses to lists, for JSON."""
    if is_record(type(value)):
        return {name: _plain(getattr(value, name)) for name in field_names(type(value))}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _agent(root: str) -> dict[str, Any]:
    """Return the state of the running agent. The status field says so if no agent runs or the user may not ask it."""
    try:
        return agent_state(root)
    except NoAgent as error:
        return {"status": "not_running", "error": error.message, "hint": error.hint, "failures": []}
    except PyprofError as error:
        return {"status": "unknown", "error": error.message, "hint": error.hint, "failures": []}


def _health(agent: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about the agent, and lines about each condition that holds."""
    if "error" in agent:
        yield f"agent: {str(agent['status']).replace('_', ' ')}: {printable(agent['error'])}"
        return
    budget = agent["budget"]
    yield f"agent: {agent['status']}, {format_cost(budget)}"
    for each in agent["failures"]:
        place = "".join(f" {each[name]}" for name in ("sink", "mode", "rate", "cause") if name in each)
        since = duration(1e9 * each["since_seconds"])
        yield f"  {each['reason']}{printable(place)}, for {since}: {printable(each['error'])}"
        more = [f"{name} {value}" for name, value in each.items() if name not in _SHOWN and name not in budget]
        if more:
            yield f"    {printable(', '.join(more))}"
        yield f"    hint: {printable(advice(each['hint']))}"
    for each in agent.get("unmatched_rules", ()):
        criteria = f" ({printable(each['criteria'])})" if each["criteria"] else ""
        yield f"  rule {each['rule']}{criteria} has decided about no process since the agent read it"


def format_cost(budget: Mapping[str, Any]) -> str:
    """Return the text about the agent's cost, budget and effort. One MB is 1 << 20 bytes, as in the configuration."""
    own_mb, allowed_mb = (budget[name] / (1 << 20) for name in ("own_memory", "budget_memory"))
    allowed = f"{budget['budget_cpu_percent']:g} % of a processor and {allowed_mb:.0f} MB"
    pause = budget["unchecked_seconds"]
    if not budget["is_measured"]:
        return f"cost not measured yet ({allowed} allowed; files are read for the first time)"
    cost = f"{budget['own_cpu_percent']:g} % of a processor ({budget['budget_cpu_percent']:g} % allowed)"
    memory = f"{own_mb:.0f} MB ({allowed_mb:.0f} allowed)"
    used = f"1 of {budget['one_sampling_time_in']} sampling times, 1 of {budget['one_process_in']} processes"
    when = f", checked again in {pause} s" if pause else ""
    over = f"; over the budget{when}" if budget["is_exceeded"] else ""
    return f"{cost}, {memory}, {used}{over}"


def _forget(root: str, arguments: argparse.Namespace, sinks: list[str]) -> str:
    """Delete the queue of a former sink, and return a line about it."""
    sink = arguments.forget
    if arguments.config is None:
        raise UsageError("--forget needs the configuration, which names the sinks in use", "use --config FILE")
    if sink in sinks:
        raise UsageError(
            f"the sink {sink} is still configured",
            "remove its [[push]] from the configuration and send SIGHUP to the agent",
        )
    count = forget(root, sink)
    return f"{count:,} segments waited for {printable(sink)}, which is forgotten; those in the spool stay"


def _services(found: SpoolState, root: str, since: str) -> Iterator[str]:
    yield f"{root}, since {since}:"
    yield f"{'segments':>9} {'KB':>7} {'samples':>9} {'stride':>9} {'whole':>8} {'newest':>12}  service"
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
        if problem.hint:
            yield f"{'':12}{printable(advice(problem.hint))}"


def _queues(waiting: list[QueueState], sinks: list[str] | None, taken: Mapping[str, float | None]) -> Iterator[str]:
    """Yield the lines of the table of sinks' queues.

    Args:
        waiting: The queues.
        sinks: Configured sinks, None if no usable configuration was given.
        taken: For each sink of the running agent the seconds since its receiver accepted a segment, None if it has
            accepted none.
    """
    yield f"{'waiting':>9} {'KB':>7} {'oldest':>12} {'last taken':>12}  sink"
    for each in waiting:
        gone = sinks is not None and each.sink not in sinks
        more = f"  not configured: pyprof agent status --forget {each.sink}" if gone else ""
        oldest = _age(each.oldest_ns) if each.segments else "-"
        ago = taken.get(each.sink)
        last = f"{duration(1e9 * ago)} ago" if ago is not None else "-"
        yield f"{each.segments:9,} {each.bytes / 1000:7,.0f} {oldest:>12} {last:>12}  {each.sink}{more}"


def _age(moment_ns: int) -> str:
    return f"{duration(max(time.time_ns() - moment_ns, 0))} ago"
