"""Closing a window of a recording: named, written, told."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyprof.cli.python_options import view_options
from pyprof.cli.terminal import complain
from pyprof.errors import OutputError

if TYPE_CHECKING:
    from pyprof.exporters.base import Exporter
    from pyprof.model.profile import Profile
    from pyprof.model.summary import Summary
    from pyprof.session.recorder import Window
    from pyprof.session.session import Session


@dataclass
class WindowWriter:
    """Everything that closing a window needs."""

    arguments: argparse.Namespace
    exporter: Exporter
    output: str
    session: Session
    pid: int
    name: str
    several: bool
    say: Callable[[str], None]

    @property
    def title(self) -> str:
        return self.name if self.several else f"{self.name} ({self.pid})"

    def finish(self, window: Window, number: int) -> int:
        """Name, write and report one window; 0, or 1 if it could not go where it should."""
        from pyprof.cli import output
        from pyprof.exporters.base import ExportOptions

        a = self.arguments
        names = output.Names(self.pid, self.name, window.start_ns / 1e9, number)
        profile = self.session.profile(window, self.title, a.rate, a.mode, view_options(a))
        missing = replace(profile.summary.python_missing, kernel=a.kernel)
        profile = replace(profile, summary=replace(profile.summary, python_missing=missing))
        options = ExportOptions(threads=a.threads, processes=a.processes, full_paths=a.full_paths)
        code, place = 0, ""
        try:
            place = output.write(names.expand(self.output), lambda out: self.exporter.write(profile, out, options))
        except OutputError as error:
            complain(error.message, error.hint)
            code = 1
        if a.summary:
            try:
                output.write(names.expand(a.summary), lambda out: _write_summary(profile.summary, out))
            except OutputError as error:
                complain(error.message, error.hint)
                code = 1
        if not a.quiet:
            self._tell(profile, number, place)
        return code

    def _tell(self, profile: Profile, number: int, place: str) -> None:
        """place: where the profile is now, "" if nowhere."""
        from pyprof.cli.report import brief, report

        a = self.arguments
        width = min(max(shutil.get_terminal_size().columns, 60), 120)
        first = not (a.every and number)
        page = self.exporter.name == "flamegraph"
        for text in report(profile, width, page, a.verbose) if first or a.verbose else [brief(profile)]:
            self.say(text)
        if not profile.summary.samples and not a.gil:
            self.say("  nothing was sampled: " + _why_empty(self))
        if place:
            self.say(f"pyprof: wrote {place}" if place != "-" else "pyprof: written to standard output")


def _why_empty(recording: WindowWriter) -> str:
    from pyprof.collectors.linux import procfs
    from pyprof.collectors.perf.collector import USER_ONLY

    arguments = recording.arguments
    if arguments.pid and procfs.state(recording.pid, recording.pid) == "stopped":
        return f"the target is stopped: kill -CONT {recording.pid}"
    children = "" if arguments.subprocesses else "; -s follows its children"
    if arguments.mode != "cpu" or arguments.cmd:
        return f"the target ended before it could be sampled, or did not run{children}"
    if USER_ONLY in recording.session.collector.stats().notes:
        return "no thread was running outside of the kernel"
    return f"no thread was running; -i samples sleeping threads too{children}"


def _write_summary(summary: Summary, out: Any) -> None:
    import orjson

    from pyprof.exporters.utf8 import dumps

    out.write(dumps(summary.to_json(), orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
