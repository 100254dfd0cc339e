"""The plan of a recording: the source that samples each process and thread, and the rule that chose it.

make_plan() is a pure function of facts and options. combined/planner.py collects the facts, and makes the
plan again when one of them changes. docs/design.md has the rules as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.linux.sampled_arch import KNOWN_MACHINES, PERF_ARCHES
from pyprof.errors import PyprofError, UnsupportedArchitecture
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.arch import native_arches
from pyprof.model.loss_reason_texts import make_cause
from pyprof.options import AUTO, CollectOptions

BPF, PERF, PTRACE = "bpf", "perf", "ptrace"
"""Names of the sources of samples, as the option --collector takes them: a BPF program, perf_events, or short
stops by ptrace.
"""
MIN_BPF_KERNEL = (5, 19)
BPF_CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38}
"""Bit numbers of the capabilities that BPF needs (capabilities(7))."""
NO_STOPS = 1 << 16
"""Value of --stack-size in bytes. Up to this value no thread is stopped (ptrace) because the kernel cannot
copy its whole stack.
"""
_CAP_SYS_ADMIN = 21


class UncopiedStack(Enum):
    """The kind of a thread's stack that its present source cannot copy completely."""

    LONG = "longer than a copy"
    SECOND = "continues on a second stack"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The facts about one process by which its source of samples is chosen. The defaults are those of a native program
    that may be stopped.

    Attributes:
        stops: Error that says why ptrace cannot stop the process, such as another tracer. None if it can, or
            if that was not checked.
        interpreter: Why perf_events miss functions of its interpreter. "" if they miss none, None if an interpreter has
            not started yet.
        unreadable: Why BPF cannot copy the frames of its interpreter. "" if it can, None if that is not known yet.
        stacks: Kinds of its threads' stacks that the present source cannot copy completely, by tid.
    """

    stops: PyprofError | None = None
    interpreter: str | None = ""
    unreadable: str | None = ""
    stacks: Mapping[int, UncopiedStack] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The facts by which make_plan() chooses the source of samples: the machine, the rights of pyprof, and
    what the recording has shown so far.

    Attributes:
        machine: Machine name of uname(2).
        kernel: Version of the kernel, as (major, minor).
        capabilities: Effective capabilities of this process, as a bit set.
        initial_user_namespace: True if this process is in the kernel's first user namespace.
        initial_pid_namespace: True if this process is in the kernel's first pid namespace.
        perf: Why the kernel permits no perf event for the options, such as its perf_event_paranoid; None if it does.
        perf_user_only: True if perf events do not see time in the kernel.
        arch: Name of the architecture of the first process's code, "" if it is not known.
        stops: Error that says why ptrace can stop none of the processes, such as missing rights. None if it
            can stop one, or if that was not checked.
        everything: True if all processes of the machine are recorded.
        launched: True if the recorded program has not started yet.
        short_lives: True if ptrace stops miss much processor time, because threads or processes end before
            they are stopped.
        current: The source that samples the recording now, "" before it begins.
        refused: Errors of sources that could not be opened.
        processes: The known facts about processes, by pid.
    """

    machine: str
    kernel: tuple[int, ...]
    capabilities: int = 0
    initial_user_namespace: bool = True
    initial_pid_namespace: bool = True
    perf: PyprofError | None = None
    perf_user_only: bool = False
    arch: str = ""
    stops: PyprofError | None = None
    everything: bool = False
    launched: bool = False
    short_lives: bool = False
    current: str = ""
    refused: Mapping[str, PyprofError] = MappingProxyType({})
    processes: Mapping[int, ProcessFacts] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choice:
    """The source that samples a process or thread.

    Attributes:
        source: Its name for --collector.
        rule: Name of the rule that chose it (a text in model/loss_reason_texts.py).
        why: The fact that decided: a cause (see make_cause) or an error's message; "" if the rule says it all.
        provisional: True if the choice must be made again soon, because an interpreter starts.
    """

    source: str
    rule: str
    why: str = ""
    provisional: bool = False

    @property
    def stop_reason(self) -> str | None:
        """The reason why the process is sampled by ptrace stops, "" if it is not, None if that is not known yet."""
        if self.source == PTRACE:
            return self.why
        return None if self.provisional else ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of make_plan(): the source that samples each process and thread of a recording.

    Attributes:
        default: The choice for all processes that are not in `processes`.
        processes: Choices by pid, for the processes whose facts are known.
        threads: Choices by tid, for threads that another source samples than their process.
    """

    default: Choice
    processes: Mapping[int, Choice] = field(default_factory=dict)
    threads: Mapping[int, Choice] = field(default_factory=dict)


def make_plan(facts: PlanFacts, options: CollectOptions, collector: str = AUTO) -> Plan:
    """Return the plan of a recording: the source that samples each process and thread.

    Args:
        facts: The known facts about the machine, the rights and the processes.
        options: Options of the recording.
        collector: Name of the collector that the user requests by --collector.

    Raises:
        PyprofError: No source can do what the options request.
    """
    default = _choose_default(facts, options, collector)
    processes = {
        pid: _choose_for_process(process, default, facts, options, collector)
        for pid, process in facts.processes.items()
    }
    stopped = Choice(PTRACE, "plan_stack_by_stops")
    threads = {
        tid: stopped
        for pid, process in facts.processes.items()
        if processes[pid].source != PTRACE and process.stops is None and _allows_stops_of_threads(options)
        for tid in process.stacks
    }
    return Plan(default, processes, threads)


def find_refusal(source: str, facts: PlanFacts, options: CollectOptions) -> PyprofError | None:
    """Return the error that says why a source cannot do what the options request on this machine, or None if it can."""
    if source in facts.refused:
        return facts.refused[source]
    if source == BPF:
        return _find_refusal_of_bpf(facts) or _find_refusal_of_kernel_samples(facts)
    if source == PERF and options.wakers:
        return CollectorRefused("perf_events do not show which thread ended a wait", "--collector bpf")
    return _find_refusal_of_kernel_samples(facts) if source == PERF else _find_refusal_of_stops(facts, options)


def _find_refusal_of_bpf(facts: PlanFacts) -> PyprofError | None:
    if facts.machine not in PERF_ARCHES:
        return UnsupportedArchitecture(f"the program in the kernel is made for {KNOWN_MACHINES}")
    if facts.kernel < MIN_BPF_KERNEL:
        return CollectorRefused("programs in the kernel need Linux 5.19 or later", "")
    if not facts.initial_user_namespace:
        text = "programs in the kernel (BPF) need rights outside of this user namespace"
        return CollectorRefused(text, "run pyprof outside of it, or in a container without one")
    if not facts.initial_pid_namespace:
        text = "programs in the kernel (BPF) do not know the process ids of this pid namespace"
        return CollectorRefused(text, "run pyprof outside of it, or: docker run --pid=host …")
    if lacks := missing_capabilities(facts):
        text = f"programs in the kernel (BPF) need root, or CAP_BPF and CAP_PERFMON: pyprof lacks {' and '.join(lacks)}"
        return CollectorRefused(text, "sudo pyprof …")
    return None


def missing_capabilities(facts: PlanFacts) -> list[str]:
    """Return the names of the capabilities that BPF needs and this process lacks."""
    has = facts.capabilities
    return [name for name, bit in BPF_CAPABILITIES.items() if not (has >> bit | has >> _CAP_SYS_ADMIN) & 1]


def _find_refusal_of_kernel_samples(facts: PlanFacts) -> PyprofError | None:
    """Return the error that says why neither perf_events nor BPF can sample on this machine, or None. Both
    need an event of the kernel.
    """
    here = PERF_ARCHES.get(facts.machine)
    if here is None:
        return UnsupportedArchitecture(f"samples of perf_events are read on {KNOWN_MACHINES}")
    if facts.arch not in ("", here.wide.name, here.narrow.name):
        return UnsupportedArchitecture(f"it runs {facts.arch} code")
    return facts.perf


def _find_refusal_of_stops(facts: PlanFacts, options: CollectOptions) -> PyprofError | None:
    if options.kernel:
        return CollectorRefused("samples by stops have no kernel frames", "-k --collector perf")
    if options.wakers:
        return CollectorRefused("samples by stops do not show which thread ended a wait", "--collector bpf")
    if not native_arches(facts.machine):
        return UnsupportedArchitecture(f"nothing is known of {facts.machine}")
    return facts.stops


def _choose_default(facts: PlanFacts, options: CollectOptions, collector: str) -> Choice:
    if collector != AUTO:
        if (refusal := find_refusal(collector, facts, options)) is not None:
            raise refusal
        return Choice(collector, "plan_requested")
    lacks_bpf = find_refusal(BPF, facts, options)
    if lacks_bpf is None and (by_bpf := _choose_bpf(facts, options)) is not None:
        return by_bpf
    if lacks_bpf is not None and options.wakers:
        raise lacks_bpf
    events, stops = find_refusal(PERF, facts, options), find_refusal(PTRACE, facts, options)
    if events is not None:
        if stops is not None:
            raise events
        return Choice(PTRACE, "plan_events_refused", _as_text(events))
    if facts.perf_user_only and stops is not None:
        return Choice(PERF, "plan_stops_refused", _as_text(stops))
    if facts.perf_user_only:
        if facts.short_lives and not options.idle:
            return Choice(PERF, "plan_short_lives")
        return Choice(PTRACE, "plan_kernel_time", make_cause("kernel_not_sampled"))
    if options.idle and stops is None and _allows_stops_of_processes(facts, options):
        why = next((each.interpreter for each in facts.processes.values() if each.interpreter and not each.stops), "")
        if why:
            return Choice(PTRACE, "plan_waits_by_stops", why)
    return Choice(PERF, "plan_native")


def _choose_bpf(facts: PlanFacts, options: CollectOptions) -> Choice | None:
    """Return the choice of BPF by the first rule that requires BPF, or None if perf_events are sufficient."""
    if options.wakers:
        return Choice(BPF, "plan_wakers")
    if facts.current == BPF:
        return Choice(BPF, "plan_bpf_stays")
    if options.idle:
        return Choice(BPF, "plan_waits")
    if facts.everything or facts.launched:
        return Choice(BPF, "plan_any_program")
    for process in facts.processes.values():
        if process.interpreter != "":
            return Choice(BPF, "plan_interpreter", process.interpreter or "")
    if any(UncopiedStack.SECOND in process.stacks.values() for process in facts.processes.values()):
        return Choice(BPF, "plan_second_stack")
    return None


def _choose_for_process(
    process: ProcessFacts, default: Choice, facts: PlanFacts, options: CollectOptions, collector: str
) -> Choice:
    if default.source == BPF:
        if process.unreadable and process.stops is None and not options.kernel:
            return Choice(PTRACE, "plan_unreadable", process.unreadable)
        return _until_known(default, process.unreadable)
    if default.source == PERF and collector == AUTO:
        stopped = _allows_stops_of_processes(facts, options) and not options.idle and process.stops is None
        if process.interpreter and stopped:
            return Choice(PTRACE, "plan_interpreter_by_stops", process.interpreter)
        return _until_known(default, process.interpreter)
    return default


def _until_known(default: Choice, reason: str | None) -> Choice:
    return default if reason is not None else Choice(default.source, default.rule, default.why, provisional=True)


def _allows_stops_of_processes(facts: PlanFacts, options: CollectOptions) -> bool:
    """Return True if whole processes may be stopped, in addition to perf_events, to see functions of their
    interpreters.
    """
    return options.running and not options.kernel and not facts.everything


def _allows_stops_of_threads(options: CollectOptions) -> bool:
    """Return True if single threads may be stopped because of their stacks. It is False if waits are
    recorded: on-CPU and off-CPU time of a thread cannot come from two sources.
    """
    return not options.kernel and not options.idle and options.stack_size > NO_STOPS


def _as_text(error: PyprofError) -> str:
    return f"{error.message.rstrip('.')}. {error.hint}".strip()
