"""`pyprof record`: sample a process or a command, and write what it did."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from pyprof.cli.arguments import chosen_format, positive, positive_int
from pyprof.cli.python_options import add_python
from pyprof.cli.remote import add_remote, remote_options
from pyprof.cli.sampling_options import add_sampling, add_unwinding, record_options
from pyprof.cli.selection import add_selection, target_options
from pyprof.cli.terminal import complain, failure, one_terminal, printable
from pyprof.cli.window import WindowOptions, WindowWriter
from pyprof.errors import OutputError, UsageError
from pyprof.exporters import registry
from pyprof.options import (
    RecordOptions,
    TargetOptions,
)

if TYPE_CHECKING:
    from pyprof.collectors.targets.launch import Launched
    from pyprof.options import RemoteOptions
    from pyprof.session.recording import Recording

_WAYS = "-p PID, -a, --name REGEX (--user, --cgroup), --gdb HOST:PORT, or a command"

DESCRIPTION = """\
Attach to a running process (-p PID) or start a command, sample its stacks, and write a
profile. The kernel takes the samples where that is allowed, else running threads are
stopped for microseconds a sample; the target is left running whatever happens to pyprof.
Ctrl-C, SIGTERM, -d or the target's end finish the recording; what was recorded until
then is written.
"""

EPILOG = """\
output:
  The format follows -f, else the suffix of -o:
FORMATS
  In a file name %p is the pid, %n the process name, %t the time, %i the number of the
  window (with --every), %% a percent sign.

exit status:
  0 done, 1 error (what was recorded is kept), 2 wrong usage; with a command: the command's.

examples:
  pyprof record -p 1234
  pyprof record -p 1234 -d 30 -r 199 -o checkout.speedscope.json
  pyprof record -d 10 -o - -f collapsed -p 1234 | awk '{print $NF, $0}' | sort -n
  pyprof record -s --every 60 -o 'web-%t.pb.gz' -p 1234
  pyprof record -o build.html --save build.pyprof -- make -j4
  pyprof record -p 1234 -p 1240 -d 10
  pyprof record --name 'postgres|pgbouncer' -d 30
  sudo pyprof record -a -d 10 -o machine.html
  pyprof record -p 1234 --mode offcpu -d 10
  pyprof record --gdb board:2345 --sysroot /usr/arm-linux-gnueabihf -d 10
"""


def formats() -> str:
    """The formats with their suffixes, a line each."""
    rows = [(entry.name, " ".join(entry.suffixes), entry.summary) for entry in registry.FORMATS]
    return "\n".join(f"    {name:<11} {suffixes:<26} {summary}" for name, suffixes, summary in rows)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "record",
        help="sample a process or a command and write a profile",
        description=DESCRIPTION,
        epilog=EPILOG.replace("FORMATS", formats()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="pyprof record [options] (-p PID ... | -a | --name REGEX | --gdb HOST:PORT | [--] CMD ...)",
    )
    parser.add_argument(
        "-p",
        "--pid",
        type=positive_int,
        action="append",
        default=[],
        metavar="PID",
        help="the process to attach to; may be repeated",
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="CMD", help="or the command to start and record")
    add_selection(parser)

    add_remote(parser)
    what = add_sampling(parser)
    what.add_argument(
        "--step",
        type=positive_int,
        metavar="N",
        help="with --gdb: one sample each N instructions, by single-stepping, where a stub cannot interrupt",
    )
    add_unwinding(parser)
    add_python(parser)
    out = parser.add_argument_group("what is written")
    out.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="default: pyprof-NAME-PID-TIME.html; - is standard output for text formats",
    )
    out.add_argument("--save", metavar="FILE", help="also keep the recording, for pyprof report: NAME.pyprof")
    out.add_argument("-f", "--format", metavar="FORMAT", help=f"{', '.join(registry.names())} (default: by the suffix)")
    out.add_argument("-t", "--threads", action="store_true", help="the thread as root frame of its stacks")
    out.add_argument("--processes", action="store_true", help="the process as root frame, where there are several")
    out.add_argument("--full-paths", action="store_true", help="modules by their path instead of their name")
    out.add_argument(
        "--every", type=positive, metavar="S", help="close the output and begin the next one each S seconds"
    )
    out.add_argument("--summary", metavar="FILE", help="write what the recording did as JSON")
    out.add_argument("-v", "--verbose", action="store_true", help="all that was counted, and what each module lacks")
    out.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary on standard error")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    remote = remote_options(arguments)
    targets = target_options(arguments)
    if len(command) == 1 and command[0].isdigit() and not targets and not remote:
        raise UsageError(f"{command[0]} is no command", f"a process is given with -p {command[0]}")
    ways = sum(map(bool, (command, targets, remote)))
    if ways > 1:
        raise UsageError(f"give either {_WAYS}", "pyprof record -p PID, or pyprof record -- CMD ...")
    if not ways:
        raise UsageError(
            f"say in one of five ways what is recorded: {_WAYS}",
            "pyprof record -p PID, or pyprof record -- CMD ...",
        )
    from pyprof.cli.output import Names, check_writable
    from pyprof.exporters.base import ExportOptions

    named = arguments.format or arguments.output
    exporter = chosen_format(arguments.format, arguments.output or "") if named else registry.DEFAULT
    template = arguments.output or f"pyprof-%n-%p-%t{'-%i' if arguments.every else ''}{exporter.suffixes[0]}"
    if arguments.idle and arguments.mode not in (None, "wall"):
        raise UsageError("-i is --mode wall", "give one of them")
    for path in filter(None, (template, arguments.save)):
        if arguments.every and path != "-" and not any(mark in path for mark in ("%i", "%t")):
            raise UsageError("--every writes several files: they need different names", "-o 'name-%i.html'")
    if arguments.save in (template, "-"):
        raise UsageError("--save needs a file of its own", "--save NAME.pyprof")
    for path in filter(None, (template, arguments.save, arguments.summary)):
        check_writable(Names(0, "x", time.time(), 0).expand(path))
    how = WindowOptions(
        exporter=exporter,
        output=template,
        save=arguments.save,
        summary=arguments.summary,
        export=ExportOptions(arguments.threads, arguments.processes, arguments.full_paths),
        target="command" if command else "pid" if targets and targets.pids else "",
        verbose=arguments.verbose,
        quiet=arguments.quiet,
    )
    return _Run(arguments.every, record_options(arguments), how).run(command, targets, remote, arguments.environment)


SECOND_S = 0.15
"""How long a second signal waits for an orderly end."""
SAME_S = 0.05
"""Signals that come so soon after the first are the same request: timeout(1) signals a process, then its group."""
OPENING_S = 3.0
"""How long the first one waits for a recording to begin, so that it can end."""


def _exit(why: str) -> None:
    """From any thread, wherever the others are. The kernel lets go of what is stopped or open."""
    complain(why)
    os._exit(1)


class _Run:
    """One invocation: signals, the command that is started, what is said."""

    def __init__(self, every: float | None, options: RecordOptions, how: WindowOptions) -> None:
        self._every = every
        self._options = options
        self._how = how
        self._recording: Recording | None = None
        self._command: Launched | None = None
        self._ended = False
        self._same_until = 0.0
        self._over = threading.Event()

    def run(
        self,
        command: list[str],
        targets: TargetOptions | None,
        remote: RemoteOptions | None,
        environment: dict[str, str],
    ) -> int:
        from pyprof.cli.interrupts import listen
        from pyprof.collectors.targets.launch import launch
        from pyprof.session import opening
        from pyprof.session.worker.process import forked

        gc.freeze()  # what is loaded now stays: no collection has to look at it
        listen(self._end)
        if command:
            self._command = launch(command, environment)
            self._recording = opening.of_command(self._command, self._options, forked)
        elif remote is not None:
            self._recording = opening.of_stub(remote, self._options, forked)
        else:
            assert targets is not None  # run() has seen to it
            self._recording = opening.of_processes(targets, self._options, forked)
        if self._ended:
            self._recording.end()
        return self._record(self._recording)

    def _end(self, number: int) -> None:
        """Finish. The terminal gives Ctrl-C to the command too; a SIGTERM or SIGHUP meant for both is sent on to it."""
        again, self._ended = self._ended, True
        if self._command and number in (signal.SIGTERM, signal.SIGHUP):
            self._command.send_signal(number)
        if again and time.monotonic() < self._same_until:
            return
        recording = self._recording
        if recording is None and not again:
            timer = threading.Timer(OPENING_S, self._leave_opening)
            timer.daemon = True
            timer.start()
        if recording is not None:
            if again:
                recording.abandon()
            recording.end()
        self._same_until = time.monotonic() + SAME_S
        if again and not self._over.wait(SECOND_S):
            _exit("ended at the second request: what was not written yet is lost")

    def _leave_opening(self) -> None:
        if self._recording is None:
            _exit("ended before the recording began")

    def _left(self, written: bool) -> None:
        """The loop did not end."""
        lost = "what came after its last batch is lost" if written else "nothing was written"
        _exit(f"the sampling was told to end and did not: {lost}")

    def _record(self, recording: Recording) -> int:
        from pyprof.cli.progress import Progress

        subject = recording.subject
        sink = WindowWriter(self._how, subject, self._options)
        shared = self._command is not None and one_terminal()  # the command's lines and prompts stay as they are
        if shared:
            lasts = f"{self._options.duration:g} s" if self._options.duration else "until it ends"
            sink.say(f"pyprof: recording {printable(subject.title)}, {lasts}; Ctrl-C to finish")
        progress = Progress(subject.title, self._how.quiet or shared, self._options.duration)
        recording.deliveries.inherit(sink)
        if self._every:
            recording.deliveries.every(self._every, sink)
        recording.watch(self._left)
        recording.run(lambda: progress.update(recording.stats, recording.samples))
        progress.clear()
        if not (recording.asked_to_end or self._command or recording.failure):
            sink.say("pyprof: the target has ended")
        failures: list[BaseException] = []
        try:
            recording.deliveries.rest(sink)
        except Exception as error:
            failures.append(error)
        failures += [*recording.deliveries.failures(), *([recording.failure] if recording.failure else [])]
        recording.detach()
        self._over.set()
        for each in dict.fromkeys(failures):
            if not isinstance(each, OutputError):  # which the sink has reported
                failure(each)
        code = int(bool(failures))
        if self._command:
            if self._command.poll() is None:
                sink.say(f"pyprof: {printable(subject.name)} runs on; waiting for its end (Ctrl-C ends it)")
                progress.wait(lambda: recording.returncode is not None)
            return self._command.wait() or code
        return code
