"""The sink of `pyprof record`: it writes each window of a recording to a file and reports it in the terminal."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from pyprof.cli.terminal_output import columns, line, refuse
from pyprof.errors import OutputError
from pyprof.exporters import registry
from pyprof.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyprof.cli.output_files import Names
    from pyprof.exporters.base import Exporter, ExportOptions, Journal, JournalBeginning
    from pyprof.model.profile import Profile
    from pyprof.model.summary import Summary
    from pyprof.options import RecordOptions
    from pyprof.session.recording import Recorded


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """The options for writing the windows of a recording.

    Attributes:
        output: Pattern of the output's file name, with %p, %n, %t and %i (see output_files.Names).
        save: Pattern of the name of the recording file, None for none.
        summary: Pattern of the name of the summary file, None for none.
        target: Kind of the target: "pid", "command", "stub", or "" for processes that match criteria.
        idle: True if waits of idle threads are shown.
    """

    exporter: Exporter
    output: str
    save: str | None
    summary: str | None
    export: ExportOptions
    target: str
    verbose: bool
    quiet: bool
    idle: bool = False

    @property
    def descriptors(self) -> list[int]:
        """File descriptors of this process to which output is written, as the shell's >(...) passes them."""
        from pyprof.exporters import output_file

        named = {output_file.find_stream(path) for path in (self.output, self.save, self.summary) if path}
        return sorted(number for number in named if number is not None and number > 2)


@dataclass(frozen=True, slots=True)
class WindowWriter:
    """A Sink that writes each window of a recording to its files. `options` are the options of the recording."""

    how: WindowOptions
    subject: Recorded
    options: RecordOptions

    def say(self, text: str) -> None:
        if not self.how.quiet:
            line(text, sys.stderr)

    def _names(self, start_ns: int, number: int) -> Names:
        from pyprof.cli.output_files import Names

        return Names(self.subject.pid, self.subject.name, start_ns / 1e9, number)

    @property
    def kept(self) -> str:
        """Name of the recording file of `pyprof record`, "" if none is written."""
        return self.how.output if self.how.exporter.name == registry.RECORDING else self.how.save or ""

    def open_journal(self, beginning: JournalBeginning, number: int) -> Journal | None:
        """Open the journal of the recording file, which is written while the recording runs. None if no recording file
        is written.
        """
        from pyprof.exporters import output_file
        from pyprof.recording.writer import FileJournal

        place = self._names(beginning.start_ns, number).expand(self.kept) if self.kept else ""
        if not place or place in output_file.DEVICES or output_file.find_stream(place) is not None:
            return None
        return FileJournal(place, beginning)

    def receive_profile(self, profile: Profile, number: int) -> None:
        """Write one window of a recording to its file, and report it.

        Raises:
            OutputError: A file was not written, and a message about it was printed.
        """
        from pyprof.cli import output_files
        from pyprof.model.analysis.idle_waits import without_idle

        shown = profile if self.how.idle else without_idle(profile)
        how, names = self.how, self._names(profile.start_ns, number)
        profiles: list[tuple[Exporter, str]] = [(how.exporter, how.output)]
        if how.save:
            profiles.append((registry.find_format(registry.RECORDING), how.save))
        places, failed = [], None
        for exporter, place in profiles if profile.summary.samples or self._may_be_empty(number) else ():
            try:
                part = profile if exporter.name == registry.RECORDING else shown
                places.append(
                    output_files.write(names.expand(place), partial(exporter.write, part, options=how.export))
                )
            except OutputError as error:
                refuse(error)
                failed = error
            except BrokenPipeError:  # the reader has closed the pipe
                failed = OutputError("standard output was closed")
        if how.summary:
            try:
                output_files.write(names.expand(how.summary), lambda out: _write_summary(shown.summary, out))
            except OutputError as error:
                refuse(error)
                failed = error
        if not how.quiet:
            self._report(shown, number, places)
        elif self._is_failure(shown) and number == 0 and how.target != "command":  # whose exit code is the result
            line(f"pyprof: nothing was sampled: {self._why_empty(shown)}", sys.stderr)
        if failed is not None:
            raise failed

    @property
    def is_of_locks(self) -> bool:
        """True if only waits for locks are recorded, so that a profile may have no samples."""
        return self.options.lock_holder or self.options.mode == "lock"

    def _is_failure(self, profile: Profile) -> bool:
        return not profile.summary.samples and not self.is_of_locks

    def _may_be_empty(self, number: int) -> bool:
        """Return True if a profile without samples is written too: if it is one of several windows, or in a format that
        programs read.
        """
        return number > 0 or self.is_of_locks or self.how.exporter.name != registry.DEFAULT.name

    def _report(self, profile: Profile, number: int, places: Sequence[str]) -> None:
        """Print the summary of a recorded window, and the paths of the files to which it was written."""
        from pyprof.cli.terminal_summary import brief, report, wrapped

        width = min(max(columns(), 60), 120)
        page = self.how.exporter.name == "flamegraph"
        whole = number == 0 or self.how.verbose
        for text in report(profile, width, page, self.how.verbose) if whole else [brief(profile)]:
            self.say(text)
        if self._is_failure(profile):
            for text in wrapped(f"  nothing was sampled: {self._why_empty(profile)}", width, "  "):
                self.say(text)
        for place in places:
            self.say(f"pyprof: wrote {place}" if place != "-" else "pyprof: written to standard output")

    def _why_empty(self, profile: Profile) -> str:
        from pyprof.cli.number_and_name_format import percent
        from pyprof.collectors.linux import procfs

        pid, target = self.subject.pid, self.how.target
        if "thread_not_traceable" in profile.summary.errors:
            return f"its threads may not be stopped: pyprof doctor {pid} says why"
        if target == "pid" and procfs.read_state(pid, pid) == "stopped":
            return f"the target is stopped: kill -CONT {pid}"
        if target == "stub":
            return "the target ended before it could be sampled, or no thread was running: -i samples sleeping ones too"
        followed = self.options.subprocesses or (self.options.subprocesses is None and target == "command")
        if (spent := profile.summary.children).children_s > spent.own_s:
            share = percent(spent.children_s, spent.own_s + spent.children_s)
            return f"{share} of the processor time was its children's, which were not followed: add -s"
        is_late = any(note.reason == "too_short_or_late" for note in profile.summary.notes)
        if is_late or profile.summary.late_s > profile.summary.not_sampled_s:
            return "pyprof got no processor in time: record for longer, by -d, or raise its priority"
        if profile.summary.processor_s and profile.summary.not_sampled_s:
            return (
                "the threads ran too briefly for this rate, or their records were lost: a higher rate (-r 999) may help"
            )
        children = "" if followed else "; -s follows its children"
        if self.options.mode == "offcpu" and target != "command" and procfs.read_state(pid, pid) != "gone":
            idle = "" if self.how.idle else ", except idle ones (--idle shows them)"
            return f"no thread waited{idle}; --mode wall also shows running threads{children}"
        if self.options.mode != "cpu":
            return f"the target ended before it could be sampled, or did not run{children}"
        if target == "command":
            return f"the command ended before it could be sampled, or slept: -i samples sleeping threads too{children}"
        if any(note.reason == "kernel_not_sampled" for note in profile.summary.notes):
            return "no thread was running outside of the kernel"
        return f"no thread was running; -i samples sleeping threads too{children}"


def _write_summary(summary: Summary, out: Any) -> None:
    import orjson

    from pyprof.model.untrusted_text import dump_json

    out.write(dump_json(summary.to_json(), orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
