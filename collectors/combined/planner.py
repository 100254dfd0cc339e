"""The facts about a recording and its machine, and the plan (sampling_source_plan.py) that follows from them.
The plan is made again when a fact changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.sampled_arch import PERF_ARCHES
from pyprof.collectors.perf.cpu_wide_events import choose_scope
from pyprof.collectors.perf.event_attributes import PerfNotAllowed
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.collectors.sampling_source_plan import (
    BPF,
    BPF_CAPABILITIES,
    MIN_BPF_KERNEL,
    PERF,
    PTRACE,
    Choice,
    Plan,
    PlanFacts,
    ProcessFacts,
    UncopiedStack,
    find_refusal,
    make_plan,
    missing_capabilities,
)
from pyprof.collectors.targets import attach_checks
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import Note, format_message, make_note
from pyprof.options import AUTO, CollectOptions
from pyprof.problem_counters import Finding

_FIRST_USER_NAMESPACE, _FIRST_PID_NAMESPACE = 0xEFFFFFFD, 0xEFFFFFFC
"""Inodes of the kernel's initial namespaces (include/linux/proc_ns.h)."""
ANY_PID = 0
"""Key of an imagined process or thread in facts and plans, to ask what the plan for such a process would be."""
_ANY_INTERPRETER = ProcessFacts(interpreter="an interpreter")

FindInterpreter = Callable[[int], str | None]
"""The type of a function that returns, for a pid, the reason why an interpreter in the process needs stops
(ProcessFacts.interpreter).
"""


def collect_facts(
    pids: tuple[int, ...], options: CollectOptions, everything: bool = False, launched: bool = False
) -> PlanFacts:
    """Return the facts by which the source of samples is chosen: about this machine, the rights of pyprof,
    and the first process to record.

    Args:
        pids: The processes to record; (0,) for any process of this machine.
        options: Options of the recording.
        everything: True if all processes of the machine are recorded.
        launched: True if the recorded program has not started yet.

    Raises:
        NoSuchProcess: The first process has ended.
    """
    system = os.uname()
    facts = PlanFacts(
        system.machine,
        tuple(int(part) for part in system.release.split(".")[:2] if part.isdigit()),
        int(procfs.read_thread_status(os.getpid())["CapEff"], 16),
        _is_in("user", _FIRST_USER_NAMESPACE),
        _is_in("pid", _FIRST_PID_NAMESPACE),
        everything=everything,
        launched=launched,
    )
    try:
        if pids[0]:
            facts = replace(facts, arch=procfs.read_arch(pids[0]).name)
        if facts.machine in PERF_ARCHES:
            scope = choose_scope(pids[0], list_online_cpus()[0], options, everything)
            facts = replace(facts, perf_user_only=scope.event.user_only)
    except PerfNotAllowed as error:
        facts = replace(facts, perf=error)
    except ProcessLookupError:
        raise NoSuchProcess(f"there is no process {pids[0]}", "list processes with: ps -e") from None
    return facts


def check_stops(facts: PlanFacts, pids: Iterable[int]) -> PlanFacts:
    """Check whether ptrace can stop one of the processes. Return the facts without an error of stops if so,
    else with the error for the first process.
    """
    errors: list[PyprofError] = []
    for pid in pids:
        error = _find_error_of_stops(pid) if pid else None
        if error is None:
            return replace(facts, stops=None)
        errors.append(error)
    return replace(facts, stops=errors[0])


def _find_error_of_stops(pid: int) -> PyprofError | None:
    try:
        attach_checks.check_target(pid)
    except PyprofError as error:
        return error
    return None


def _is_in(kind: str, inode: int) -> bool:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino == inode
    except OSError:  # a kernel without such namespaces
        return True


class Planner:
    """The chooser of the source by which a recording takes its samples: the facts that are known so far, and the plan
    that follows from them.

    Attributes:
        facts: The facts.
        options: Options of the recording.
    """

    def __init__(
        self,
        facts: PlanFacts,
        options: CollectOptions,
        collector: str = AUTO,
        find_interpreter: FindInterpreter = lambda pid: "",
    ) -> None:
        """Create a planner that knows no facts about single processes yet.

        Args:
            facts: The facts that collect_facts() has returned.
            options: Options of the recording.
            collector: Name of the collector that the user requests by --collector.
            find_interpreter: Function that inspects a process for an interpreter.
        """
        self.facts = facts
        self.options = options
        self._collector = collector
        self._find_interpreter = find_interpreter

    def make_plan(self, facts: PlanFacts | None = None) -> Plan:
        """Return the plan that follows from the given facts, or from the planner's own facts."""
        return make_plan(facts or self.facts, self.options, self._collector)

    def refuse(self, source: str, error: PyprofError, pids: Iterable[int]) -> None:
        """Note that a source (BPF, perf_events or stops) could not be opened, so that the next plan is made
        without it.
        """
        self.facts = replace(self.facts, refused={**self.facts.refused, source: error})
        self.facts = check_stops(self.facts, pids)

    def find_refusal_of_bpf(self) -> PyprofError | None:
        """Return the error that says why --collector auto cannot use BPF, or None."""
        return find_refusal(BPF, self.facts, self.options) if self._collector == AUTO else None

    def inspect(self, pid: int) -> ProcessFacts:
        """Inspect a process for an interpreter, and return the facts that decide whether it is stopped for samples."""
        reason = self._find_interpreter(pid)
        return ProcessFacts(interpreter=reason, stops=_find_error_of_stops(pid) if reason else None)

    def choose(self, pid: int) -> Choice:
        """Inspect a process, and return the plan's choice for this process alone."""
        return self.suppose(self.inspect(pid)).processes[ANY_PID]

    def suppose(self, process: ProcessFacts) -> Plan:
        """Return the plan for an imagined recording of one process with these facts. Facts about other
        processes are ignored.
        """
        return self.make_plan(replace(self.facts, processes={ANY_PID: process}))

    def note_source(self, source: str) -> None:
        """Note the source that samples the recording from now on."""
        self.facts = replace(self.facts, current=source)

    def choose_first(self, pids: Iterable[int]) -> Choice:
        """Return the plan's choice of the first source for the recording.

        If an interpreter would change the choice, the processes are inspected in their order, up to the first
        one that runs an interpreter.
        """
        first = self.make_plan().default
        if self.suppose(_ANY_INTERPRETER).default.source == first.source:
            return first
        for pid in pids:
            process = self.inspect(pid)
            if process.interpreter != "":
                self.facts = replace(self.facts, processes={**self.facts.processes, pid: process})
                break
        return self.make_plan().default

    def may_depend_on_programs(self) -> bool:
        """Return True if the program that a process runs may change the source of its samples. It is always
        True for BPF, which has to know the program's interpreter.
        """
        if self.facts.current != PERF:
            return self.facts.current == BPF
        return self.suppose(_ANY_INTERPRETER).processes[ANY_PID].source != PERF

    def may_follow_short_lives(self) -> bool:
        """Return True if another source could replace stops when threads and processes end too soon to be stopped."""
        return self.make_plan(replace(self.facts, short_lives=True)).default.source != PTRACE

    @property
    def stops_long_stacks(self) -> bool:
        """True if the plan stops a thread whose stacks are longer than the present source copies."""
        return bool(self.suppose(ProcessFacts(stacks={ANY_PID: UncopiedStack.LONG})).threads)


def describe_refusal_of_bpf(why: PyprofError) -> Note:
    """Return the note for the summary that says why BPF is not used. If the error's hint names another
    collector, the hint is left out, because that collector is used.
    """
    hint = f" ({why.hint})" if why.hint and not why.hint.startswith("--collector") else ""
    return make_note("without_program", why=f"{why.message.rstrip('.')}{hint}")


def describe_facts(facts: PlanFacts, options: CollectOptions) -> Iterator[Finding]:
    """Yield the findings of `pyprof doctor` about the facts by which sources are chosen, and about each source."""
    least = ".".join(map(str, MIN_BPF_KERNEL))
    yield Finding(facts.kernel >= MIN_BPF_KERNEL, f"kernel {'.'.join(map(str, facts.kernel))}; BPF needs {least}")
    lacks = ", ".join(missing_capabilities(facts))
    yield Finding(not lacks, f"{' and '.join(BPF_CAPABILITIES)}: {f'pyprof lacks {lacks}' if lacks else 'yes'}")
    initial = facts.initial_user_namespace and facts.initial_pid_namespace
    yield Finding(initial, f"user and pid namespaces: {'the first ones' if initial else 'not the first ones'}")
    if facts.perf is not None:
        yield Finding(False, f"perf_events: {facts.perf.message}", facts.perf.hint)
    elif facts.perf_user_only:
        yield Finding(False, "perf_events: without time in the kernel", "sudo sysctl kernel.perf_event_paranoid=1")
    else:
        yield Finding(True, "perf_events: with time in the kernel")
    for source in (BPF, PERF, PTRACE):
        refusal = find_refusal(source, facts, options)
        hint = refusal.hint if refusal else ""
        text = "yes" if refusal is None else f"no: {refusal.message}"
        yield Finding(refusal is None, f"--collector {source}: {text}", hint)
        if source == BPF:
            text = "yes" if refusal is None else "no: they need --collector bpf"
            yield Finding(refusal is None, f"--wakers, --mode lock: {text}", hint)


def describe_plans(facts: PlanFacts, processes: Mapping[str, ProcessFacts]) -> Iterator[Finding]:
    """Yield the findings of `pyprof doctor` about the source that --collector auto takes for processes in each mode.

    Args:
        facts: The facts about this machine.
        processes: The facts about each process, by the process's name in the output.
    """
    for mode, options in (("cpu", CollectOptions()), ("wall", CollectOptions(idle=True))):
        for name, process in processes.items():
            what = f"auto, --mode {mode}, {name}"
            try:
                choice = Planner(facts, options).suppose(process).processes[ANY_PID]
                why = format_message(choice.rule, why=choice.why)
                yield Finding(True, f"{what}: {why}")
            except PyprofError as error:
                yield Finding(False, f"{what}: no source: {error.message}", error.hint)
