"""The sink of `pyprof record`: each window of a recording is written to its file, and reported."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from pyprof.cli.terminal import line, refuse
from pyprof.errors import OutputError
from pyprof.records import dataclass

if TYPE_CHECKING:
    from pyprof.exporters.base import Exporter, ExportOptions
    from pyprof.model.profile import Profile
    from pyprof.model.summary import Summary
    from pyprof.options import RecordOptions
    from pyprof.session.recording import Recorded


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """output, summary: names of files, with %p %n %t %i; summary: None for none. target: "pid", "command" or what else
    the recorded processes were chosen by.
    """

    exporter: Exporter
    output: str
    summary: str | None
    export: ExportOptions
    target: str
    verbose: bool
    quiet: bool


@dataclass(frozen=True, slots=True)
class WindowWriter:
    """A Sink. options: how the recording is made."""

    how: WindowOptions
    subject: Recorded
    options: RecordOptions

    def say(self, text: str) -> None:
        if not self.how.quiet:
            line(text, sys.stderr)

    def take(self, profile: Profile, number: int) -> None:
        """Write and report one window. OutputError is raised after the error was reported."""
        from pyprof.cli import output

        how = self.how
        names = output.Names(self.subject.pid, self.subject.name, profile.start_ns / 1e9, number)
        place, failed = "", None
        try:
            place = output.write(names.expand(how.output), lambda out: how.exporter.write(profile, out, how.export))
        except OutputError as error:
            refuse(error)
            failed = error
        if how.summary:
            try:
                output.write(names.expand(how.summary), lambda out: _write_summary(profile.summary, out))
            except OutputError as error:
                refuse(error)
                failed = error
        if not how.quiet:
            self._tell(profile, number, place)
        if failed is not None:
            raise failed

    def _tell(self, profile: Profile, number: int, place: str) -> None:
        """place: where the profile is now, "" if nowhere."""
        from pyprof.cli.outcome import brief, report

        width = min(max(shutil.get_terminal_size().columns, 60), 120)
        page = self.how.exporter.name == "flamegraph"
        whole = number == 0 or self.how.verbose
        for text in report(profile, width, page, self.how.verbose) if whole else [brief(profile)]:
            self.say(text)
        if not profile.summary.samples and not self.options.lock_holder:
            self.say("  nothing was sampled: " + self._why_empty(profile))
        if place:
            self.say(f"pyprof: wrote {place}" if place != "-" else "pyprof: written to standard output")

    def _why_empty(self, profile: Profile) -> str:
        from pyprof.collectors.linux import procfs
        from pyprof.collectors.perf.collector import USER_ONLY

        pid, target = self.subject.pid, self.how.target
        if target == "pid" and procfs.state(pid, pid) == "stopped":
            return f"the target is stopped: kill -CONT {pid}"
        followed = self.options.subprocesses or (self.options.subprocesses is None and target == "command")
        children = "" if followed else "; -s follows its children"
        if self.options.mode != "cpu" or target == "command":
            return f"the target ended before it could be sampled, or did not run{children}"
        if USER_ONLY in profile.summary.notes:
            return "no thread was running outside of the kernel"
        return f"no thread was running; -i samples sleeping threads too{children}"


def _write_summary(summary: Summary, out: Any) -> None:
    import orjson

    from pyprof.exporters.utf8 import dumps

    out.write(dumps(summary.to_json(), orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
