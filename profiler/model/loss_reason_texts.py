"""Reasons by name: the meaning of counters, ends of stacks, refusals, problems of files.

The table has three parts: loss_reason_table.py; fleet_loss_reasons.py for agent and server; and here the reasons whose
text has arguments. Their sentence and hint are templates with named arguments, as of str.format(). The format of an
argument may also be `{threads:thread|threads}`: an integer, followed by the noun for one or for several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import islice

from pyprof.errors import PyprofError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model import loss_reason_table
from pyprof.model.fleet_loss_reasons import PUSH
from pyprof.model.reason_type import Reason, Stage
from pyprof.problem_counters import Problem

_ELSEWHERE = "name the program by --exe FILE, the target's files by --sysroot DIR"
"""Hint for a missing file if the target is no process of this machine."""
_NO_SYMBOLS = "--symbols with a folder or server of NAME/ID/NAME.sym; for files: --exe FILE, --sysroot DIR"
_LATER = "record with -o FILE.pyprof, then: pyprof report FILE.pyprof --symbols {path}"

_PART = "{seconds:.2f} s of {spent_s:.2f} s of processor time ({percent:.0f} %)"

# fmt: off
PROBLEMS = (
    Reason("rules_compute_too_much", Stage.TABLES,
           "its unwind rules need too much computation; stacks through it are truncated"),
    Reason("no_unwind_tables", Stage.TABLES, "no unwind sections: unwound by frame pointers only"),
    Reason("windows_without_symbols", Stage.FILES,
           "windows module without a symbol file ({identity}): frames may be missing", hint=_NO_SYMBOLS),
    Reason("neither_file_nor_symbols", Stage.FILES,
           "neither its file nor a symbol file found ({identity}): frames may be missing", hint=_NO_SYMBOLS),
    Reason("file_differs", Stage.FILES,
           "file differs from the mapped one: {how}",
           hint="restart the target, so that it runs the file that is on disk"),
    Reason("file_differs_elsewhere", Stage.FILES, "file differs from the mapped one: {how}", hint=_ELSEWHERE),
    Reason("file_not_proved", Stage.FILES, "not used, because it is not proved to be the mapped file"),
    Reason("file_not_proved_elsewhere", Stage.FILES, "not used, because it is not proved to be the "
        "mapped file", hint=_ELSEWHERE),
    Reason("file_not_found", Stage.FILES,
           "file not found{known}: unwound by frame pointers only, frames may be missing", hint=_ELSEWHERE),
    Reason("symbol_file_differs", Stage.FILES,
           "{file} is the symbol file of another build: it says {stated}, the file is {wanted}",
           hint="give the symbol file of the build that runs"),
    Reason("symbol_file_not_proved", Stage.FILES,
           "{file} cannot be proved to be its symbol file: it has neither build-id nor .text",
           hint="give the symbol file of the build that runs"),
    Reason("symbol_file_unreadable", Stage.FILES, "{why}"),
    Reason("symbol_file_line", Stage.FILES, "line {line}: {what}"),
    Reason("symbol_file_lines", Stage.FILES, "{what}: {times}"),
    Reason("symbol_server_silent", Stage.FILES, "not asked again: {why}"),
    Reason("symbol_table_broken", Stage.FILES, "broken symbol table: {where}"),
    Reason("exported_names_only", Stage.FILES, "no symbols: only exported names", hint="{command}"),
    Reason("no_time_for_names", Stage.FILES, "no names: the time to look them up ended", hint=_LATER),
    Reason("no_time_for_lines", Stage.FILES,
           "lines and inlined functions only in part: the time to read them ended", hint=_LATER),
    Reason("lines_take_long", Stage.FILES,
           "lines and inlined functions only in part: reading them takes over {seconds} s", hint=_LATER),
    Reason("debug_information_broken", Stage.FILES, "broken DWARF: {where}"),
    Reason("debug_information_split", Stage.FILES,
           "split DWARF: inlined functions are in .dwo files, which are not read"),
    Reason("code_without_names", Stage.RUN_TIME_CODE,
           "code generated at run time, without names: its process does not describe it", hint="{command}"),
    Reason("perf_map_silent", Stage.RUN_TIME_CODE, "the perf map was not read: its file system does not answer"),
    Reason("code_file_too_large", Stage.RUN_TIME_CODE, "the file is too large: the rest is not read"),
)
"""Problems of one object file, or one file about code, that a recording reports (Diagnostics.problem). The hint of each
is a command that fixes it.
"""

NOTES = (
    Reason("by_stops", Stage.SAMPLING, "Sampled by short stops (ptrace): {why}"),
    Reason("by_stops_in_part", Stage.SAMPLING,
           "Sampled by short stops (ptrace): {processes:process|processes}: {why}"),
    Reason("by_stepping", Stage.SAMPLING,
           "Sampled by stepping: one sample each {steps} instructions. Shares are shares of instructions; the target "
           "ran much slower than by itself"),
    Reason("by_events", Stage.SAMPLING, "Sampled by perf_events ({event})"),
    Reason("by_program", Stage.SAMPLING, "Sampled by a program in the kernel (BPF)"),
    Reason("by_program_because", Stage.SAMPLING, "Sampled by a program in the kernel (BPF): {why}"),
    Reason("never_stopped", Stage.SAMPLING, "The target was never stopped"),
    Reason("without_program", Stage.SAMPLING,
           "BPF, which reads functions of interpreters without stops, is not available: {why}"),
    Reason("processors_came_back", Stage.SAMPLING,
           "No samples for at most {seconds:.1f} s, on processors that were offline for a part of it: {cpus}"),
    Reason("until_interpreter", Stage.SAMPLING,
           "Until an interpreter was found, perf_events recorded: {seconds:.1f} s"),
    Reason("until_second_stack", Stage.SAMPLING,
           "Until a thread had a stack that continues on another one, perf_events recorded: {seconds:.1f} s"),
    Reason("until_short_lives", Stage.SAMPLING,
           "Until short stops had missed too much, because processes or threads ended first: {seconds:.1f} s"),
    Reason("no_stops_needed", Stage.SAMPLING,
           "Until an interpreter was found, no program needed stops, and perf_events recorded: {seconds:.1f} s"),
    Reason("threads_stopped_for_depth", Stage.STACKS,
           "Stopped for their samples: {threads:thread|threads} with stacks that are longer than the kernel copies, "
           "or that continue on another stack (--stack-size 64K avoids these stops)"),
    Reason("processes_stopped_for_depth", Stage.STACKS,
           "Stopped for their samples: {threads:thread|threads} with stacks that are longer than the kernel copies, "
           "or that continue on another stack, and then all threads of {processes:process|processes} (--stack-size 64K "
           "avoids these stops)"),
    Reason("sleepers_from_outside", Stage.SAMPLING, "Sleeping threads were read from outside: none was stopped"),
    Reason("idle_hidden", Stage.SAMPLING,
           "idle: {threads:thread|threads}, {seconds:.1f} s hidden; --idle shows them"),
    Reason("idle_whole", Stage.SAMPLING,
           "idle: {seconds:.1f} s of the hidden time is in {functions}, which waited for a queue all the time"),
    Reason("only_idle", Stage.SAMPLING, "idle: only waits for work were recorded; they are shown"),
    Reason("waits", Stage.SAMPLING, "Off-CPU time is exact; its stacks are those with which threads left their "
                                    "processors"),
    Reason("waits_from_outside", Stage.SAMPLING,
           "Off-CPU time is exact; its stacks are read from outside (for those with which threads left their "
           "processors: sudo sysctl kernel.perf_event_paranoid=1)"),
    Reason("switches_lost", Stage.SAMPLING,
           "Records of context switches were lost: {seconds:.2g} s on or off processors are counted like the time "
           "around them"),
    Reason("waits_by_program", Stage.SAMPLING,
           "Off-CPU time is exact except for a few waits in a thousand; waits of {least_ms:g} ms and more have the "
           "stacks with which they began"),
    Reason("stub_states_unknown", Stage.TARGET,
           "The stub does not say which threads run: sleeping ones are sampled too"),
    Reason("read_from_collapsed", Stage.OUTPUT, "Read from collapsed stacks, which have no times and threads"),
    Reason("lines_left_out", Stage.OUTPUT, "Left out: {count:line|lines} of the file that are not stacks"),
    Reason("read_from_pprof", Stage.OUTPUT, "Read from a pprof file, whose samples have no times"),
    Reason("labels_left_out", Stage.OUTPUT, "Labels were left out of some samples: {labels}"),
    Reason("read_from_speedscope", Stage.OUTPUT, "Read from a speedscope file"),
    Reason("read_from_perf", Stage.OUTPUT, "Read from perf's samples of {event}, named by perf"),
    Reason("other_events_left_out", Stage.OUTPUT, "Left out: {count:sample|samples} of other events: {names}"),
    Reason("perf_failed", Stage.OUTPUT, "perf did not read the file to its end: {why}"),
    Reason("read_from_segments", Stage.OUTPUT,
           "{count:segment|segments} of {minutes:,.1f} minutes; samples have the time of their window"),
    Reason("read_from_windows", Stage.SERVER,
           "{count:window|windows}; samples have the time of their part of the span"),
    Reason("stacks_left_out", Stage.SERVER,
           "Left out: the {count:,} cheapest stacks, {percent:.2f} % of all"),
    Reason("processes_left_out", Stage.TARGET, "Left out: {count:process|processes} that may not be sampled"),
    Reason("processes_left_out_without_root", Stage.TARGET,
           "Left out: {count:process|processes} that may not be sampled; as root, more of them may"),
    Reason("process_left_out", Stage.TARGET, "Left out: {why}"),
    Reason("children_polled", Stage.TARGET,
           "Children were found by polling at each sampling time: those that ended between two of them are not in "
           "the profile (as root the kernel reports each one)"),
    Reason("calls_cut_short", Stage.TARGET,
           "Stops have cut system calls of {threads:thread|threads} short. From then on such a thread is stopped in "
           "one round of {rounds}, and its samples count for all of them"),
    Reason("rate_lowered", Stage.SAMPLING,
           "rate lowered from {wanted:g} to {reached:.3g} samples a second, so that the target is stopped at most "
           "{limit:g} % of the time"),
    Reason("budget_kept", Stage.SAMPLING,
           "To keep the agent's budget one of {times} sampling times was used, whose samples stand for all of them, "
           "and one of {processes} processes was recorded", hint="set a larger budget.cpu or budget.memory"),
    Reason("shares_of_windows", Stage.SERVER,
           "Shares are by {samples:,.0f} samples of {percent:.0f} % of the time: with 95 % probability a share of 50 % "
           "is right to within {width:.1f} percentage points"),
    Reason("shares_by_samples", Stage.SAMPLING,
           "Sums are processor time by the kernel's clocks. Shares are by {samples:.0f} samples of {percent:.0f} % of "
           "it: with 95 % probability a share of 50 % is right to within {width:.0f} percentage points"),
    Reason("sums_by_samples", Stage.SAMPLING,
           "Sums are the times that samples stand for: the kernel's clocks of the processes are not known. Shares are "
           "by {samples:.0f} samples: with 95 % probability a share of 50 % is right to within {width:.0f} "
           "percentage points"),
    Reason("window_recovered", Stage.SAMPLING,
           "The agent or its worker was killed in this window, which ends at the last checkpoint: later samples are "
           "lost"),
    Reason("window_resumed", Stage.SAMPLING,
           "The recording began during this window: the first {seconds:.1f} s of it have no samples. Their "
           "processor time is in the sums and has the shares of the samples that came later"),
    Reason("kernel_not_sampled", Stage.SAMPLING,
           "Time in the kernel has no samples; to sample it: sudo sysctl kernel.perf_event_paranoid=1"),
    Reason("stacks_not_copied", Stage.SAMPLING,
           "Cut short in this mode: stacks that are longer than the kernel copies, or that continue on another stack "
           "(--collector ptrace records them completely)"),
    Reason("switches_in_part", Stage.SAMPLING,
           "{threads:thread|threads} switched so often that only a part of the time was recorded; the rest is "
           "counted in the same proportions"),
    Reason("switches_of_machine_in_part", Stage.SAMPLING,
           "The machine switched threads so often that only a part of the time was recorded; the rest is counted "
           "in the same proportions"),
    Reason("too_short", Stage.SAMPLING,
           f"Not sampled: {_PART}, by threads or processes that ran too briefly to be sampled: marked [not sampled]"),
    Reason("too_short_or_late", Stage.SAMPLING,
           f"Not sampled: {_PART}, by threads that ran too briefly, or left their processor before pyprof came "
           "(without CAP_SYS_NICE it waits for a processor): marked [not sampled]"),
    Reason("records_lost", Stage.SAMPLING,
           f"Not sampled: {_PART}, whose records were lost: marked [not sampled]"),
    Reason("kernel_time", Stage.SAMPLING,
           f"Not sampled: {_PART}, in the kernel, which may not be sampled: marked [not sampled]"),
    Reason("times_missed", Stage.SAMPLING, f"Sampling times were missed in {_PART}: pyprof was late, or records "
        "were lost. The samples share this time"),
    Reason("times_missed_of_all", Stage.SAMPLING, "In all services of the window together, sampling times were missed "
        f"in {_PART}: pyprof was late, or records were lost. The samples share this time"),
    Reason("stub_lost_early", Stage.TARGET, "The recording ended early: {why}"),
    Reason("stub_one_thread", Stage.TARGET,
           "qemu-user stops one thread only: the others ({others}), which run on, were left out"),
    Reason("not_holding_lock", Stage.OPTIONS, "Only threads that held the GIL: {held} of {all} samples"),
    Reason("no_lock_seen", Stage.OPTIONS, "No interpreter was seen in the samples (--collector perf sees none)"),
    Reason("no_lock", Stage.OPTIONS, "The interpreter is free-threaded: it has no GIL"),
    Reason("recording_interrupted", Stage.OUTPUT,
           "The recording was interrupted or is still running: it ends with the last second that was written"),
    Reason("kept_unreadable", Stage.OUTPUT, "Some of the kept windows could not be read"),
    Reason("segments_unreadable", Stage.SPOOL,
           "{count:segment|segments} could not be read, the first: {first}"),
    Reason("older_sentence", Stage.OUTPUT, "{text}"),
)
"""Reasons that appear once as a note in a recording's summary: how it was made, and what is missing in all of it."""

WARNINGS = (
    Reason("functions_missing", Stage.INTERPRETER, "{language} functions are missing in {where}: {how}",
           hint="{command}"),
    Reason("children_not_followed", Stage.TARGET,
           "Children used {children_s} s of processor time, the process itself {own_s} s: children are not in this "
           "profile, -s records them too", hint="pyprof record -s …"),
)
"""Warnings of a recording's summary, which the user must see first."""

CAUSES = (
    Reason("without_trampoline", Stage.INTERPRETER, "CPython {version} runs in it without a perf trampoline."),
    Reason("waits_of_greenlets", Stage.INTERPRETER,
           "It runs greenlets, whose suspended frames are on C stacks: where waits are recorded, these are read in "
           "stops."),
    Reason("frames_unknown_to_program", Stage.INTERPRETER,
           "The program in the kernel cannot read the frames of CPython {version}."),
)
"""Causes for which a process is sampled by stops, and not by BPF or perf_events.

The sentences of other notes contain one of them (see make_cause()).
"""

PLAN = (
    Reason("plan_requested", Stage.SAMPLING, "the source that --collector names"),
    Reason("plan_wakers", Stage.SAMPLING, "BPF: only it sees which thread ends a wait"),
    Reason("plan_bpf_stays", Stage.SAMPLING, "BPF: it samples until the recording ends"),
    Reason("plan_waits", Stage.SAMPLING, "BPF: it has the stack and the functions of each longer wait"),
    Reason("plan_any_program", Stage.SAMPLING,
           "BPF: a started command, its children, and processes of the whole machine may run any program"),
    Reason("plan_interpreter", Stage.SAMPLING, "BPF: it copies the frames of interpreters without stops"),
    Reason("plan_second_stack", Stage.SAMPLING, "BPF: it copies a second stack, such as that of a signal handler"),
    Reason("plan_native", Stage.SAMPLING, "perf_events: they see all of a native program"),
    Reason("plan_interpreter_by_stops", Stage.SAMPLING, "short stops: the process has an interpreter: {why}"),
    Reason("plan_waits_by_stops", Stage.SAMPLING,
           "short stops of all processes: the time of a thread cannot come from two sources, and one process has an "
           "interpreter: {why}"),
    Reason("plan_unreadable", Stage.SAMPLING, "short stops: BPF cannot copy the frames of the process: {why}"),
    Reason("plan_stack_by_stops", Stage.SAMPLING, "short stops: the kernel copies only a part of the thread's stacks"),
    Reason("plan_events_refused", Stage.SAMPLING, "short stops: {why}"),
    Reason("plan_stops_refused", Stage.SAMPLING, "perf_events, without time in the kernel: {why}"),
    Reason("plan_kernel_time", Stage.SAMPLING, "short stops: perf_events do not see time in the kernel"),
    Reason("plan_short_lives", Stage.SAMPLING, "perf_events: threads or processes end before they can be stopped"),
)
"""Rules by which a source of samples is chosen (collectors/sampling_source_plan.py)."""

PAGE = (
    Reason("page_not_sampled", Stage.SAMPLING, "No sample stands for this time: it is unknown what ran."),
    Reason("page_cut_short", Stage.STACKS, "These stacks were truncated here: their outer callers are unknown."),
    Reason("page_not_expanded", Stage.OUTPUT,
           "Callers beyond this frame are not expanded: there are too many stacks."),
    Reason("page_no_source", Stage.OUTPUT, "The source file is not in this page."),
    Reason("page_source_changed", Stage.OUTPUT, "The file was changed after the recording: line numbers may be wrong."),
    Reason("page_first_rows", Stage.OUTPUT, "The first {rows} of {all} functions; search to see others."),
)
"""Texts of the flame graph's page about a frame, a source or a table that is shown only in part."""

MARKERS = (
    Reason("cut", Stage.STACKS, "[truncated: {words}]"),
    Reason("in_unwinder", Stage.STACKS, "[in the unwinder]"),
    Reason("cut_at_copy", Stage.STACKS, "[truncated: --stack-size {size} copies all of it]"),
    Reason("cut_at_depth", Stage.STACKS, "[truncated: {words}, --max-depth {frames} is enough]"),
    Reason("cut_chain", Stage.INTERPRETER, "[truncated: about {count} functions, --stack-size {size} copies them]"),
    Reason("cut_long_chain", Stage.INTERPRETER,
           "[truncated: more than {count} functions, --collector ptrace copies them]"),
    Reason("cut_scattered", Stage.INTERPRETER,
           "[truncated: more than {count} functions, too many to read one by one]"),
    Reason("frames_left_out", Stage.OUTPUT, "[frames left out: too many to keep]"),
    Reason("time_too_short", Stage.SAMPLING, "[not sampled: too short to see]"),
    Reason("time_too_short_or_late", Stage.SAMPLING, "[not sampled: too short to see, or the profiler came late]"),
    Reason("time_without_sample", Stage.SAMPLING, "[not sampled]"),
    Reason("time_lost", Stage.SAMPLING, "[not sampled: records lost]"),
    Reason("time_in_kernel", Stage.SAMPLING, "[not sampled: in the kernel]"),
    Reason("not_matched", Stage.INTERPRETER, "[merge: partial{unplaced}{without_run}]"),
)
"""Titles of markers: frames without code that tell what a stack, or a block of time, lacks (marker_frames.py)."""
# fmt: on


ENDS = {reason.name: reason for reason in loss_reason_table.ENDS}
"""Reasons why stacks end, by the label of the end."""

_OF_LANGUAGE = "no_"
_SPELLINGS = {"php": "PHP", "luajit": "LuaJIT", "net": ".NET"}

REFUSALS = {reason.name: reason for reason in loss_reason_table.REFUSALS}
"""Reasons why pyprof refuses or fails, by PyprofError.reason."""

COUNTERS = (
    *loss_reason_table.SAMPLING,
    *loss_reason_table.TARGET,
    *loss_reason_table.FILES,
    *loss_reason_table.DUMPS,
    *loss_reason_table.TABLES,
    *loss_reason_table.RUN_TIME_CODE,
    *loss_reason_table.INTERPRETER,
    *loss_reason_table.SPOOL,
    *PUSH,
)
"""Reasons whose occurrences a recording counts."""

_COUNTED = {reason.name: reason for reason in COUNTERS}

SENTENCES = {
    reason.name: reason
    for table in (
        PROBLEMS,
        NOTES,
        WARNINGS,
        CAUSES,
        PLAN,
        MARKERS,
        PAGE,
    )
    for reason in table
}
"""Reasons whose text has arguments, by name of the reason."""
_CAUSES = {reason.name: reason for reason in (*CAUSES, SENTENCES["kernel_not_sampled"])}
"""Reasons that a note may name as its cause (in the argument `why`), by name."""


def format_message(name: str, **arguments: object) -> str:
    """Return the sentence of a reason by its name, with its arguments filled in."""
    return _fill_in(SENTENCES[name].sentence, arguments)


def make_cause(name: str, version: str = "") -> str:
    """Return a cause as the argument `why` of a note or of format_message(): `name`, or `name:version`.

    Recordings have this text. For users it is replaced by the cause's sentence.
    """
    return f"{name}:{version}" if version else name


def _fill_in(template: str, arguments: Mapping[str, object]) -> str:
    return template.format_map({name: _shown(name, value) for name, value in arguments.items()})


def _shown(name: str, value: object) -> object:
    if name == "why" and isinstance(value, str):
        cause, _, version = value.partition(":")
        return _CAUSES[cause].sentence.format(version=version) if cause in _CAUSES else value
    return _Counted(value) if type(value) is int else value


class _Counted(int):
    """An integer for templates of sentences. The format `thread|threads` writes the number and the noun that fits: "1
    thread", "2 threads".
    """

    def __format__(self, form: str) -> str:
        one, is_noun, several = form.partition("|")
        return f"{int(self):,} {one if self == 1 else several}" if is_noun else super().__format__(form)


Argument = int | float | str
"""Value that replaces a placeholder such as {count} in a note's sentence."""
MAX_ARGUMENTS, MAX_ARGUMENT = 16, 4096
"""Maximum number of arguments of a note, and maximum number of characters of each."""
_MAX_NUMBER = 1 << 63
"""Limit for the absolute value of a number in a recording file's note."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a recording: the name of its reason, and the arguments of the reason's sentence.

    Recordings and JSON have these, so that the sentence may change.

    Attributes:
        reason: Name of the reason.
        arguments: Pairs (name, value) in the order of make_note(). Each name occurs once.
    """

    reason: str
    arguments: tuple[tuple[str, Argument], ...] = ()

    @property
    def text(self) -> str:
        """The note's sentence for users. If the table has no sentence for this reason and these arguments, as for a
        note of a later version of pyprof, it is the reason's name and the arguments.
        """
        row, given = SENTENCES.get(self.reason), dict(self.arguments)
        try:
            return _fill_in(row.sentence, given) if row else _spell(self)
        except (LookupError, TypeError, ValueError):
            return _spell(self)

    def to_json(self) -> dict[str, object]:
        """Return the note as an entry of a JSON document, without its sentence."""
        return {"reason": self.reason, "arguments": dict(self.arguments)}


def _spell(note: Note) -> str:
    return " ".join([note.reason, *(f"{name}={value}" for name, value in note.arguments)])


def make_note(name: str, **arguments: Argument) -> Note:
    """Return the note with the name of this reason. Arguments that are longer than a note allows are cut."""
    return Note(name, tuple((key, _plain(value)) for key, value in arguments.items()))


_MAX_PIDS = 400
"""Maximum number of processes that a note lists."""


def join_pids(pids: Iterable[int]) -> str:
    """Join process ids for the argument `pids` of a note that is about some processes of a recording. The argument is
    not shown to users.

    An agent copies such a note only to the segments of services with one of these processes.
    """
    return " ".join(map(str, islice(pids, _MAX_PIDS)))


def notes_about(notes: Iterable[Note], pids: Set[int]) -> tuple[Note, ...]:
    """Return the notes about these processes and those about the whole recording.

    Args:
        notes: Notes of a recording of more processes.
        pids: The processes.
    """
    found = []
    for note in notes:
        arguments = dict(note.arguments)
        if note.reason == "by_program_because":  # why: the interpreter of one of the processes
            found.append(make_note("by_program"))
        elif "pids" in arguments:
            own = [pid for pid in str(arguments["pids"]).split() if pid.isdecimal() and int(pid) in pids]
            counted = {"processes": len(own)} if "processes" in arguments else {}
            if own:
                found.append(make_note(note.reason, **{**arguments, **counted, "pids": " ".join(own)}))
        else:
            found.append(note)
    return tuple(found)


def _plain(value: Argument) -> Argument:
    if isinstance(value, str):
        return value[:MAX_ARGUMENT]
    return float(value) if isinstance(value, float) else value  # numpy's floats are instances of float


def parse_note(reason: object, arguments: object) -> Note:
    """Parse a note from a file, which is untrusted.

    Raises:
        ValueError: The values are not a reason and arguments as a note may have them.
    """
    if not isinstance(reason, str) or not 0 < len(reason) <= MAX_ARGUMENT or not isinstance(arguments, dict):
        raise ValueError("a note is no reason with arguments")
    if len(arguments) > MAX_ARGUMENTS or not all(isinstance(name, str) for name in arguments):
        raise ValueError("a note has too many arguments, or one without a name")
    for value in arguments.values():
        is_text = isinstance(value, str) and len(value) <= MAX_ARGUMENT
        is_number = type(value) in (int, float) and abs(value) < _MAX_NUMBER  # neither infinite nor NaN
        if not is_text and not is_number:
            raise ValueError("an argument of a note is no number and no text, or too large")
    return Note(reason, tuple(arguments.items()))


def problem(name: str, **arguments: object) -> Problem:
    """Make a Problem, which has a sentence and a command that fixes it, from the reason with this name. The arguments
    are filled into both texts.
    """
    row = SENTENCES[name]
    return Problem(_fill_in(row.sentence, arguments), _fill_in(row.hint, arguments), name)


def problem_counted(name: str) -> Problem:
    """Make a Problem from the counter's reason with this name. Its sentence is the counter's title."""
    row = _COUNTED[name]
    return Problem(row.title, row.hint, name)


def problem_of(error: PyprofError) -> Problem:
    """Return the problem that an error describes. Its hint is that of the error or of its reason."""
    return Problem(error.message, find_hint(error), error.reason)


def find_hint(error: PyprofError) -> str:
    """Return the hint for an error: the hint of the error, else that of its reason.

    "" if nothing is known, as for an agent's refusal.
    """
    return error.hint or (REFUSALS[error.reason].hint if error.reason in REFUSALS else "")


def counted(key: str) -> Reason | None:
    """Return the reason that belongs to a counter's key (`name` or `name:detail`), None if there is none."""
    return _COUNTED.get(key.partition(":")[0])


def counter_title(key: str) -> str:
    """Return the text for a counter's key, with its detail, or the key itself if the table lacks it."""
    found = counted(key)
    return found.title.replace("*", key.partition(":")[2]) if found else key


def end_reason(label: str) -> Reason | None:
    """Return the reason of a stack's end by its label, None if the table of reasons has none."""
    language = label.removeprefix(_OF_LANGUAGE)
    if label in ENDS or language == label:
        return ENDS.get(label)
    pattern = ENDS[f"{_OF_LANGUAGE}*"]
    spelling = _SPELLINGS.get(language, language.capitalize())
    return replace(pattern, name=label, title=pattern.title.replace("*", spelling))


def end_title(label: str) -> str:
    """Return the title for the label of a stack's end, or the label itself if the table lacks it."""
    found = end_reason(label)
    return found.end_title if found else label


def lacking(counts: Mapping[str, int]) -> list[str]:
    """Return phrases for users about what a profile lacks, such as "3 samples lost", from its counters. Counters with
    the same phrase are added up.
    """
    sums: dict[str, int] = {}
    for key, count in counts.items():
        found = counted(key)
        if found is not None and found.lacks and count:
            words = found.lacks.replace("*", key.partition(":")[2])
            sums[words] = sums.get(words, 0) + count
    return [
        f"{count:,} " + words.replace("{s}", "s" * (count != 1)).replace("{es}", "es" * (count != 1))
        for words, count in sums.items()
    ]
