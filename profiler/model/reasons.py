"""Reasons by name: the meaning of counters, ends of stacks, refusals, problems of files.

The table has three parts: reason_table.py; fleet_reasons.py for agent and server; and here the reasons whose text has
arguments. Their sentence and retry are templates: the code that reports the reason fills in `{how}` (said(),
problem()). The name of a reason appears only in code.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyprof.diagnostics import Problem
from pyprof.errors import PyprofError
from pyprof.model import reason_table
from pyprof.model.fleet_reasons import PUSH
from pyprof.model.reason import Reason, Stage
from pyprof.records import replace

_ELSEWHERE = "name the program by --exe FILE, the target's files by --sysroot DIR"
"""Remedy for a missing file if the target is no process of this machine."""
_NO_SYMBOLS = "--symbols with a folder or server of NAME/ID/NAME.sym; for files: --exe FILE, --sysroot DIR"
_LATER = "record with -o FILE.pyprof, then: pyprof report FILE.pyprof --symbols {path}"

# fmt: off
PROBLEMS = (
    Reason("rules_compute_too_much", Stage.TABLES,
           "its unwind rules need too much computation; stacks through it are truncated"),
    Reason("no_unwind_tables", Stage.TABLES, "no unwind sections: unwound by frame pointers only"),
    Reason("windows_without_symbols", Stage.FILES,
           "windows module without a symbol file ({identity}): frames may be missing", retry=_NO_SYMBOLS),
    Reason("neither_file_nor_symbols", Stage.FILES,
           "neither its file nor a symbol file found ({identity}): frames may be missing", retry=_NO_SYMBOLS),
    Reason("file_differs", Stage.FILES,
           "file differs from the mapped one: {how}",
           retry="restart the target, so that it runs the file that is on disk"),
    Reason("file_differs_elsewhere", Stage.FILES, "file differs from the mapped one: {how}", retry=_ELSEWHERE),
    Reason("file_not_proved", Stage.FILES, "not used, because it is not proved to be the mapped file"),
    Reason("file_not_proved_elsewhere", Stage.FILES, "not used, because it is not proved to be the "
        "mapped file", retry=_ELSEWHERE),
    Reason("file_not_found", Stage.FILES,
           "file not found{known}: unwound by frame pointers only, frames may be missing", retry=_ELSEWHERE),
    Reason("symbol_file_differs", Stage.FILES,
           "{file} is the symbol file of another build: it says {stated}, the file is {wanted}",
           retry="give the symbol file of the build that runs"),
    Reason("symbol_file_not_proved", Stage.FILES,
           "{file} cannot be proved to be its symbol file: it has neither build-id nor .text",
           retry="give the symbol file of the build that runs"),
    Reason("symbol_file_unreadable", Stage.FILES, "{why}"),
    Reason("symbol_file_line", Stage.FILES, "line {line}: {what}"),
    Reason("symbol_file_lines", Stage.FILES, "{what}: {times}"),
    Reason("symbol_server_silent", Stage.FILES, "not asked again: {why}"),
    Reason("symbol_table_broken", Stage.FILES, "broken symbol table: {where}"),
    Reason("exported_names_only", Stage.FILES, "no symbols: only exported names", retry="{command}"),
    Reason("no_time_for_names", Stage.FILES, "no names: the time to look them up ended", retry=_LATER),
    Reason("no_time_for_lines", Stage.FILES, "line numbers only in part: the time to read them ended", retry=_LATER),
    Reason("lines_take_long", Stage.FILES, "line numbers only in part: reading them takes over "
        "{seconds} s", retry=_LATER),
    Reason("debug_information_broken", Stage.FILES, "broken DWARF: {where}"),
    Reason("debug_information_split", Stage.FILES,
           "split DWARF: inlined functions are in .dwo files, which are not read"),
    Reason("code_without_names", Stage.RUN_TIME_CODE,
           "code generated at run time, without names: its process does not describe it", retry="{command}"),
    Reason("perf_map_silent", Stage.RUN_TIME_CODE, "the perf map was not read: its file system does not answer"),
    Reason("code_file_too_large", Stage.RUN_TIME_CODE, "the file is too large: the rest is not read"),
)
"""Problems of one object file, or one file about code (Diagnostics.problem). retry is a command."""

NOTES = (
    Reason("by_stops", Stage.SAMPLING, "Sampled by short stops (ptrace): {why}"),
    Reason("by_stops_in_part", Stage.SAMPLING, "Sampled by short stops (ptrace): {processes}: {why}"),
    Reason("by_stepping", Stage.SAMPLING,
           "Sampled by stepping: one sample each {steps} instructions. Shares are shares of instructions; the target "
           "ran much slower than by itself"),
    Reason("by_events", Stage.SAMPLING, "Sampled by perf_events ({event})"),
    Reason("by_program", Stage.SAMPLING, "Sampled by a program in the kernel (BPF)"),
    Reason("by_program_because", Stage.SAMPLING, "Sampled by a program in the kernel (BPF): {why}"),
    Reason("without_program", Stage.SAMPLING,
           "BPF, which reads functions of interpreters without stops, is not available: {why}"),
    Reason("processors_came_back", Stage.SAMPLING,
           "No samples for at most {seconds} s, on processors that were offline for a part of it: {cpus}"),
    Reason("never_stopped", Stage.SAMPLING, ": the target was never stopped"),
    Reason("never_stopped_because", Stage.SAMPLING, " The target was never stopped."),
    Reason("without_trampoline", Stage.INTERPRETER, "CPython {version} runs in it without a perf trampoline."),
    Reason("waits_of_greenlets", Stage.INTERPRETER,
           "It runs greenlets, whose frames wait on C stacks: by waits that is read in stops."),
    Reason("until_interpreter", Stage.SAMPLING, "Until an interpreter was found, perf_events recorded: {seconds} s"),
    Reason("until_second_stack", Stage.SAMPLING,
           "Until a thread had stacks that go on in another one, perf_events recorded: {seconds} s"),
    Reason("until_short_lives", Stage.SAMPLING,
           "Until short stops had missed too much, because processes or threads ended first: {seconds} s"),
    Reason("no_stops_needed", Stage.SAMPLING,
           "Until an interpreter was found, no program needed stops, and perf_events recorded: {seconds} s"),
    Reason("stopped_for_depth", Stage.STACKS,
           "Stopped for their samples: {threads} with {stacks} (--stack-size 64K stops nothing)"),
    Reason("sleepers_from_outside", Stage.SAMPLING, "Sleeping threads were read from outside: none was stopped"),
    Reason("idle_hidden", Stage.SAMPLING, "idle: {threads}, {seconds} s hidden{whole}; --idle shows them"),
    Reason("idle_whole", Stage.SAMPLING, ", {seconds} s of it in {functions}, which waited for a queue all the time"),
    Reason("only_idle", Stage.SAMPLING, "idle: only waits for work were recorded; they are shown"),
    Reason("waits", Stage.SAMPLING, "Time off the processor is {exact}; its stacks are of when threads left it"),
    Reason("waits_from_outside", Stage.SAMPLING,
           "Time off the processor is {exact}; its stacks are read from outside (those of when threads left it: sudo "
           "sysctl kernel.perf_event_paranoid=1)"),
    Reason("waits_by_program", Stage.SAMPLING,
           "Time off the processor is exact but for a few waits in a thousand; waits of {least_ms} ms and more have "
           "the stacks of when they began"),
    Reason("stub_states_unknown", Stage.TARGET,
           "the stub does not say which threads run: sleeping ones are sampled too"),
    Reason("read_from_collapsed", Stage.OUTPUT,
           "Read from collapsed stacks, which have no times and threads{more}."),
    Reason("lines_left_out", Stage.OUTPUT, "; {count} lines that are not stacks were left out"),
    Reason("read_from_pprof", Stage.OUTPUT, "Read from a pprof file, whose samples have no times{more}."),
    Reason("labels_left_out", Stage.OUTPUT, "; labels left out of some samples: {labels}"),
    Reason("read_from_speedscope", Stage.OUTPUT, "Read from a speedscope file."),
    Reason("read_from_perf", Stage.OUTPUT, "Read from perf's samples of {event}, named by perf{more}."),
    Reason("other_events_left_out", Stage.OUTPUT, "; {count} samples of other events were left out: {names}"),
    Reason("perf_failed", Stage.OUTPUT, "perf did not read the file to its end: {why}"),
    Reason("read_from_segments", Stage.OUTPUT,
           "{count} segments of {minutes} minutes; samples have the time of their window."),
    Reason("read_from_windows", Stage.SERVER,
           "{count} windows; samples have the time of their part of the span{more}."),
    Reason("stacks_left_out", Stage.SERVER,
           "; the {count} cheapest stacks are left out, {part} % of all"),
    Reason("processes_left_out", Stage.TARGET, "Left out: {count} processes that may not be sampled{hint}."),
    Reason("process_left_out", Stage.TARGET, "Left out: {why}."),
    Reason("children_polled", Stage.TARGET,
           "Children were found by looking for them at each sampling time: those that lived shorter are not in the "
           "profile (as root the kernel reports each one)."),
    Reason("children_not_followed", Stage.TARGET,
           "Children used {children_s} s of processor time, the process itself {own_s} s: children are not in this "
           "profile, -s records them too", retry="pyprof record -s …"),
    Reason("calls_cut_short", Stage.TARGET,
           "Stops have cut system calls of {threads} short. From then on such a thread is stopped in one round of "
           "{rounds}, and its samples count for all of them."),
    Reason("rate_lowered", Stage.SAMPLING,
           "rate lowered from {wanted} to {reached} samples a second, so that the target is stopped at most {limit} % "
           "of the time"),
    Reason("budget_kept", Stage.SAMPLING,
           "To keep the agent's budget one of {times} sampling times was used, whose samples stand for all of them, "
           "and one of {processes} processes was recorded", retry="a larger budget.cpu or budget.memory"),
    Reason("shares_of_windows", Stage.SERVER,
           "Shares are by {samples} samples of {sampled} % of the time: with 95 % probability a share of a half is "
           "right to within {width} points of a hundred"),
    Reason("shares_by_samples", Stage.SAMPLING,
           "Sums are processor time by the kernel's clocks. Shares are by {samples} samples of {sampled} % of it: with "
           "95 % probability a share of a half is right to within {width} points of a hundred"),
    Reason("sums_by_samples", Stage.SAMPLING,
           "Sums are the times that samples stand for: the kernel's clocks of the processes are not known. Shares are "
           "by {samples} samples: with 95 % probability a share of a half is right to within {width} points of a "
           "hundred"),
    Reason("window_recovered", Stage.SAMPLING,
           "The agent or its worker was killed in this window, which ends at the last checkpoint: later samples are "
           "lost"),
    Reason("window_resumed", Stage.SAMPLING,
           "The recording had ended and began again: the first {seconds} s of this window have no samples. Their "
           "processor time is in the sums and has the shares of the samples that came later"),
    Reason("kernel_not_sampled", Stage.SAMPLING,
           "Time in the kernel has no samples; to sample it: sudo sysctl kernel.perf_event_paranoid=1"),
    Reason("stacks_not_copied", Stage.SAMPLING,
           "Cut short in this mode: {stacks} (--collector ptrace records them completely)"),
    Reason("switches_in_part", Stage.SAMPLING,
           "{what} switched so often that only a part of it was recorded; the rest is counted like that"),
    Reason("switches_lost", Stage.SAMPLING,
           "exact, but for {seconds} s of which records were lost, counted like the time around"),
    Reason("too_short", Stage.SAMPLING,
           "Not sampled: {time}, by threads or processes that ran too short to be seen: marked [not sampled]"),
    Reason("too_short_or_late", Stage.SAMPLING,
           "Not sampled: {time}, by what ran too short to be seen, or had left its processor before the profiler, "
           "which may not come before others (CAP_SYS_NICE), had one: marked [not sampled]"),
    Reason("records_lost", Stage.SAMPLING,
           "Not sampled: {time}, whose records were lost: marked [not sampled]"),
    Reason("kernel_time", Stage.SAMPLING,
           "Not sampled: {time}, in the kernel, which may not be sampled: marked [not sampled]"),
    Reason("times_missed", Stage.SAMPLING,
           "Sampling times were missed in {time}: pyprof was late, or records were lost. The samples share this time"),
    Reason("stub_lost_early", Stage.TARGET, "the recording ended early: {why}"),
    Reason("stub_one_thread", Stage.TARGET,
           "qemu-user stops one thread only: the others ({others}), which run on, were left out"),
    Reason("functions_missing", Stage.INTERPRETER, "{language} functions are missing in {where}: {how}",
           retry="{command}"),
    Reason("not_holding_lock", Stage.OPTIONS, "Only threads that held the GIL: {held} of {all} samples.{why}"),
    Reason("recording_interrupted", Stage.OUTPUT,
           "The recording was interrupted or is still running: it ends with the last second that was written."),
    Reason("kept_unreadable", Stage.OUTPUT, "A part of what was kept could not be read."),
    Reason("segments_unreadable", Stage.SPOOL, "{count} segments could not be read, the first: {first}"),
)
"""Notes and warnings of a recording's summary: what it lacks as a whole, and how it was made."""

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
"""Rules by which a source of samples is chosen (collectors/plan.py)."""

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


ENDS = {reason.name: reason for reason in reason_table.ENDS}
"""Reasons why stacks end, by the label of the end."""

_OF_LANGUAGE = "no_"
_SPELLINGS = {"php": "PHP", "luajit": "LuaJIT", "net": ".NET"}

REFUSALS = {reason.name: reason for reason in reason_table.REFUSALS}
"""Reasons why pyprof refuses or fails, by PyprofError.reason."""

COUNTERS = (
    *reason_table.SAMPLING,
    *reason_table.TARGET,
    *reason_table.FILES,
    *reason_table.DUMPS,
    *reason_table.TABLES,
    *reason_table.RUN_TIME_CODE,
    *reason_table.INTERPRETER,
    *reason_table.SPOOL,
    *PUSH,
)
"""Reasons that are counted."""

_COUNTED = {reason.name: reason for reason in COUNTERS}

SENTENCES = {
    reason.name: reason
    for table in (
        PROBLEMS,
        NOTES,
        PLAN,
        MARKERS,
        PAGE,
    )
    for reason in table
}
"""Reasons whose text has arguments, by name of the reason."""


def said(name: str, **arguments: object) -> str:
    """Return the sentence of a reason by its name, with its arguments filled in."""
    return SENTENCES[name].sentence.format_map(arguments)


def problem(name: str, **arguments: object) -> Problem:
    """Return the problem of a file by the name of its reason: a sentence, and the command that fixes it."""
    row = SENTENCES[name]
    return Problem(row.sentence.format_map(arguments), row.retry.format_map(arguments), name)


def problem_counted(name: str) -> Problem:
    """Return the problem of a file, by the name of its reason, that is also counted."""
    row = _COUNTED[name]
    return Problem(row.title, row.retry, name)


def problem_of(error: PyprofError) -> Problem:
    """Return the problem that an error describes. Its remedy is that of the error or of its reason."""
    return Problem(error.message, remedy(error), error.reason)


def remedy(error: PyprofError) -> str:
    """Return the remedy for an error: the hint of the error, else that of its reason.

    "" if nothing is known, as for an agent's refusal.
    """
    return error.hint or (REFUSALS[error.reason].retry if error.reason in REFUSALS else "")


def counted(key: str) -> Reason | None:
    """Return the reason that belongs to the key of a counter, None if the table lacks it."""
    return _COUNTED.get(key.partition(":")[0])


def counter_title(key: str) -> str:
    """Return the text for a counter's key, with its detail, or the key itself if the table lacks it."""
    found = counted(key)
    return found.title.replace("*", key.partition(":")[2]) if found else key


def end_reason(label: str) -> Reason | None:
    """Return the reason that belongs to the label of a stack's end, None if the table lacks it."""
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
    """Return sentences about what a profile lacks by its counters: "3 samples lost". Counters with the same text are
    added up.
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
