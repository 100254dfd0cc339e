"""Functions that make a Recording from a target and options. The recording has not begun."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyprof.collector_control import FlushProtocol, Stride
from pyprof.collectors import registry
from pyprof.collectors.base import Collector
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.collectors.linux.process_cpu_times import UnfollowedChildren
from pyprof.collectors.targets.command_launch import LaunchedCommand
from pyprof.collectors.targets.process_selection import Selection, select_processes
from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.thread_identity import labels_of
from pyprof.options import (
    DEFAULT_FLUSH_S,
    DEFAULT_SOURCES,
    KNOWN_SOURCES,
    MAX_RATE_HZ,
    MAX_STACK_SIZE,
    MIN_STACK_SIZE,
    MODES,
    NATIVE_VIEWS,
    RecordOptions,
    RemoteOptions,
    StackOptions,
    TargetOptions,
)
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.interpreter_readers import Runtimes, runs_python
from pyprof.session.recording import Recorded, Recording
from pyprof.session.worker.interpreter_symbols import InterpreterSymbolClient
from pyprof.session.worker.messages import NamingOptions
from pyprof.session.worker.sampler_loop import Sampling
from pyprof.session.worker.worker_process import Start, Worker, spawned

_NOTHING: Mapping[str, str] = MappingProxyType({})


def of_processes(
    targets: TargetOptions, options: RecordOptions, start: Start = spawned, option_texts: Mapping[str, str] = _NOTHING
) -> Recording:
    """Make a recording of running processes.

    Args:
        targets: Selects the processes.
        options: Options of the recording.
        start: Starts the worker.
        option_texts: Further options of the user as text, which a recording file keeps.

    Raises:
        UsageError: An option is invalid.
        PyprofError: What select_processes() and the collectors raise.
    """
    check(options)
    selection = select_processes(targets)
    name = _name(targets, selection)
    subject = Recorded(selection.pids[0], name, targets.several, {**option_texts, **targets.as_text()})
    return _of_selection(selection, options, subject, start)


def of_selection(selection: Selection, options: RecordOptions, name: str, flush_s: float, stride: Stride) -> Recording:
    """Make a recording of selected processes whose background symbolization has the lowest priority (for an agent).

    Args:
        selection: The processes.
        options: Options of the recording.
        name: Common name of the processes.
        flush_s: Maximum time between two batches of samples, in seconds.
        stride: Fraction of the sampling times that is used.

    Raises:
        UsageError: An option is invalid.
        PyprofError: What the collectors raise.
    """

    def yielding(confined: bool) -> Worker:
        worker = spawned(confined)
        worker.yields = True
        return worker

    check(options)
    subject = Recorded(selection.pids[0], name, True)
    return _of_selection(selection, options, subject, yielding, flush_s=flush_s, stride=stride)


def of_command(
    command: LaunchedCommand, options: RecordOptions, start: Start = spawned, option_texts: Mapping[str, str] = _NOTHING
) -> Recording:
    """Make a recording of a launched program. If the program waits before its first instruction, it starts now, or is
    killed after an error.

    Args:
        command: The program.
        options: Options of the recording.
        start: Starts the worker.
        option_texts: Further options of the user as text, which a recording file keeps.
    """
    try:
        check(options)
        selection = select_processes(TargetOptions(pids=(command.pid,)))
        program = command.command[0]
        subject = Recorded(command.pid, os.path.basename(program), asked={**option_texts, "command": program})
        recording = _of_selection(selection, options, subject, start, command)
        try:
            recording.begin()
            command.release()
        except BaseException:
            recording.close()
            raise
        return recording
    except BaseException:
        command.cancel()
        raise


def of_stub(
    remote: RemoteOptions, options: RecordOptions, start: Start = spawned, option_texts: Mapping[str, str] = _NOTHING
) -> Recording:
    """Make a recording of a target behind a GDB stub.

    Args:
        remote: Address of the stub.
        options: Options of the recording.
        start: Starts the worker.
        option_texts: Further options of the user as text, which a recording file keeps.

    Raises:
        RemoteError: The stub cannot be reached, or does not answer.
        UsageError: An option is invalid, or not possible with a stub.
    """
    from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector

    check(options)
    if options.subprocesses:
        raise UsageError("children cannot be followed behind a stub: it shows one process")
    if options.kernel:
        raise no_kernel()
    if options.wakers or options.mode == "lock":
        raise no_wakers()
    worker = start(options.confined)
    try:
        diagnostics = Diagnostics()
        collect = options.collecting(subprocesses=False)
        collector = GdbRemoteCollector(remote, collect, diagnostics)
    except BaseException:
        worker.close()
        raise
    subject = Recorded(collector.pid, collector.name, asked={**option_texts, "stub": remote.address})
    sampling = _sampling(collector, worker, None, diagnostics, options, subject, collect.handover)
    return Recording(sampling, subject, options, collect.handover)


def _of_selection(
    selection: Selection,
    options: RecordOptions,
    subject: Recorded,
    start: Start,
    command: LaunchedCommand | None = None,
    flush_s: float = DEFAULT_FLUSH_S,
    stride: Stride | None = None,
) -> Recording:
    worker = start(options.confined)
    selection.ours.add(worker.pid)
    try:
        diagnostics = Diagnostics()
        runtimes = Runtimes(
            InterpreterSymbolClient(worker.questions, worker.notify, diagnostics, worker.wake),
            diagnostics,
            options.follow_tasks,
            options.stack_size,
        )
        collect = replace(options.collecting(subprocesses=command is not None), flush_s=flush_s)
        collect = replace(collect, stride=stride or collect.stride)
        program = _program(command) if command and command.waits else ""
        worker.wait_until_ready()  # batches from before that would wait to be unwound, and their feedback would be late
        selection.ours.update(find_descendants([worker.pid]))  # its file broker
        if program and runs_python(program):
            runtimes.rehearse(worker.pid)
        collector = registry.open_collector(options.collector, selection, collect, diagnostics, runtimes, program)
    except BaseException:
        worker.close()
        raise
    sampling = _sampling(collector, worker, runtimes, diagnostics, options, subject, collect.handover)
    if command is None and not selection.lasting and not collect.subprocesses:
        sampling.unfollowed = UnfollowedChildren(selection.pids)
    return Recording(sampling, subject, options, collect.handover, command)


def _sampling(
    collector: Collector,
    worker: Worker,
    runtimes: Runtimes | None,
    diagnostics: Diagnostics,
    options: RecordOptions,
    subject: Recorded,
    handover: FlushProtocol,
) -> Sampling:
    """Make the sampler's half of a recording, which has the collector and the worker. `runtimes` is None for a target
    behind a GDB stub.
    """
    naming = NamingOptions(
        subject.title,
        options.rate,
        options.mode,
        options.view,
        options.kernel,
        {**subject.asked, **options.as_text()},
        labels_of(options.labels or {}),
    )
    patient = runtimes is None
    runtimes = runtimes or Runtimes(InterpreterSymbolClient(worker.questions, worker.notify, diagnostics), diagnostics)
    try:
        return Sampling(
            collector,
            worker,
            runtimes,
            diagnostics,
            options.unwinding,
            naming,
            options.confined,
            patient=patient,
            handover=handover,
        )
    except BaseException:
        collector.close()
        worker.close()
        raise


def _program(command: LaunchedCommand) -> str:
    import shutil

    return shutil.which(command.command[0]) or command.command[0]


def _name(targets: TargetOptions, selection: Selection) -> str:
    """Return the common name of the recorded processes."""
    if targets.everything:
        return "all"
    criteria = (targets.name.pattern if targets.name else None, targets.user, targets.cgroup)
    found = " ".join(filter(None, criteria))
    more = f"+{len(selection.pids) - 1}" if len(selection.pids) > 1 else ""
    return found or procfs.read_name(selection.pids[0]) + more


def check(options: RecordOptions) -> None:
    """Check the options of a recording.

    Raises:
        UsageError: An option is invalid.
    """
    check_stacks(options)
    _one_of("mode", options.mode, MODES)
    _one_of("collector", options.collector, registry.list_names())
    _within("duration", options.duration, 0.0, math.inf)
    _within("rate", options.rate, 0.0, MAX_RATE_HZ)
    _within("max_overhead", options.max_overhead, 0.0, 1.0)
    _within("min_block", options.min_block, -1e-9, 1.0)
    labels_of(options.labels or {})
    if isinstance(options.thread, str):
        try:
            re.compile(options.thread)
        except re.error as error:
            raise UsageError(f"thread: {options.thread!r} is not a regular expression: {error}") from None
    if options.kernel and not registry.can_show_kernel(options.collector):
        raise no_kernel()
    if options.wakers and options.mode == "cpu":
        raise UsageError("--wakers needs waits, which --mode cpu does not record", "--mode offcpu --wakers")
    if (options.wakers or options.mode == "lock") and not registry.can_report_wakers(options.collector):
        raise no_wakers()


def check_stacks(options: StackOptions) -> None:
    """Check the options of a recording that say how stacks are taken.

    Raises:
        UsageError: An option is invalid.
    """
    if options.symbols:
        from pyprof.objfile.breakpad_symbol_search import SymbolStore

        SymbolStore(options.symbols, Diagnostics())  # the worker makes another one, but too late to report an error
    _one_of("native", options.native, tuple(NATIVE_VIEWS))
    for source in options.unwind:
        _one_of("unwind", source, KNOWN_SOURCES)
    _within("stack_size", options.stack_size, MIN_STACK_SIZE - 1, MAX_STACK_SIZE)
    _within("max_depth", options.max_depth, 0, math.inf)
    if "breakpad" in options.unwind and not set(DEFAULT_SOURCES) <= set(options.unwind) and not options.symbols:
        raise UsageError("the source breakpad needs symbol files", "--symbols PATH|URL")


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{what}: {value!r} is not one of {', '.join(known)}")


def _within(what: str, number: float | None, above: float, most: float) -> None:
    if number is None:
        return
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise UsageError(f"{what}: {number!r} is no number")
    if not above < number <= most:
        upper = f" and at most {most:g}" if most < math.inf else ""
        raise UsageError(f"{what}: {number!r} is not above {above:g}{upper}")


def no_kernel() -> UsageError:
    return UsageError("samples by stops have no kernel frames", "-k --collector auto")


def no_wakers() -> UsageError:
    return UsageError("--wakers and --mode lock need a program in the kernel (BPF)", "--collector bpf")
