"""What the counters of a recording mean, in a sentence each: the one table, also of docs/formats.md.

A counter's name is what the code counts (Diagnostics.count); it is stable. In a name of the table `*` stands for
anything: a file's section, a reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class CounterMeaning:
    """lacks: what the profile lacks, as in "3 samples lost", "" if nothing that matters; {s} is the plural's s."""

    name: str
    meaning: str
    lacks: str = ""


_SAMPLES = (
    CounterMeaning(
        "sample lost: the ring was full",
        "The kernel had no room for a sample: pyprof was too slow to read the ones before. A lower rate (-r) or "
        "a smaller --stack-size helps.",
        "sample{s} lost",
    ),
    CounterMeaning(
        "record of a switch lost: the ring was full",
        "The kernel had no room to say when a thread left its processor or came back: that time is counted like the "
        "time around it.",
        "switch{es} not recorded",
    ),
    CounterMeaning(
        "kernel throttled the sampling (kernel.perf_event_max_sample_rate)",
        "The kernel left out samples because they came faster than it allows. A lower rate (-r), or a higher limit.",
        "time{s} throttled by the kernel",
    ),
    CounterMeaning(
        "sample without registers (a thread that ends)",
        "The kernel took a sample of a thread whose memory was gone already: it has no stack.",
    ),
    CounterMeaning(
        "sample of a kernel thread",
        "The processor worked for the kernel itself, in no process. Such samples are in no profile.",
    ),
    CounterMeaning(
        "sample of a process that is not known",
        "The sample is of a process that ended before it could be looked at, or that may not be looked at.",
        "sample{s} of processes that could not be looked at",
    ),
    CounterMeaning(
        "ring held something else than records",
        "What stood in the memory that the kernel shares with us made no sense and was passed over.",
        "piece{s} of the kernel's records not understood",
    ),
    CounterMeaning(
        "thread fell asleep between the look and the stop, not counted as running",
        "The thread seemed to run, but slept when it was stopped: no sample of a running thread. Nothing is missing.",
    ),
    CounterMeaning(
        "thread ran while it was read from outside",
        "A sleeping thread woke up while its stack was read, so that the stack might be a mix of two: not used.",
    ),
    CounterMeaning(
        "sleeping thread not stopped: its system call might fail",
        "Only a stop could have shown the thread's whole stack, and its system call is one that a stop ends with "
        "EINTR: the stack stays cut short.",
    ),
    CounterMeaning(
        "modules changed while a sample was taken",
        "The target mapped or unmapped a file at that moment; what is mapped was read again.",
    ),
    CounterMeaning(
        "stack longer than --stack-size, cut there",
        "What was copied of the stack does not agree with what was read of it before, so that its outer part is "
        "unknown. The marker in its place names the --stack-size that copies all of it at each sample.",
        "stack{s} longer than --stack-size",
    ),
    CounterMeaning(
        "stack completed by the outer frames of a later one of its thread",
        "The stack was cut short, and a later, whole one of the same thread had the same frames at the same place.",
    ),
)

_TARGETS = (
    CounterMeaning(
        "* ended before its first sample",
        "It lived too short to be found and sampled.",
        "process{es} ended before the first sample",
    ),
    CounterMeaning(
        "* may not be looked at",
        "We lack the right to see the process: pyprof doctor PID says which.",
        "process{es} not allowed to be looked at",
    ),
    CounterMeaning(
        "process may not be looked at any more",
        "The process took away our right while it was recorded, for instance by running a set-uid program.",
        "process{es} not allowed to be looked at any more",
    ),
    CounterMeaning(
        "thread may not be traced",
        "Somebody else traces the thread, or we lack the right to stop it.",
        "thread{s} not allowed to be stopped",
    ),
    CounterMeaning(
        "thread held by a debugger",
        "A debugger or strace traces the thread: it cannot be sampled by stops.",
        "thread{s} held by a debugger",
    ),
    CounterMeaning(
        "thread did not stop within 0.1 s",
        "The kernel was asked to stop the thread, which came late, for instance from an uninterruptible wait; it was "
        "let go on as soon as it stopped.",
    ),
    CounterMeaning(
        "thread ran code of another architecture",
        "Its registers are of a kind that is not unwound.",
        "sample{s} of another architecture",
    ),
    CounterMeaning(
        "thread ended while it was looked at",
        "It was listed, and gone when its registers were asked for.",
    ),
    CounterMeaning(
        "too many processes began at once to follow them all",
        "Some children were not sampled.",
        "time{s} that too many processes began at once",
    ),
    CounterMeaning(
        "system call of the target restarted",
        "A stop came just as the thread entered a system call; the call was begun anew, as after any signal.",
    ),
    CounterMeaning(
        "system call of the target may have failed with EINTR",
        "A stop came just as the thread entered a system call that cannot be begun anew (docs/safety.md).",
        "system call{s} of the target that may have failed with EINTR",
    ),
    CounterMeaning(
        "connection to the stub ended early",
        "The GDB stub is gone; what was recorded until then is kept.",
        "connection{s} ended early",
    ),
    CounterMeaning("file fetched through the stub", "An object file was not here and was read through the GDB stub."),
)

_FILES = (
    CounterMeaning(
        "file differs from the mapped one", "The file was replaced since it was mapped, so its memory is read."
    ),
    CounterMeaning("file of a module not found", "Neither by its name nor through /proc: its functions have no names."),
    CounterMeaning("file could not be compared with the mapped one", "Nothing proves that it is the same: not used."),
    CounterMeaning("neither file nor symbol file of a module found", "Its functions have no names."),
    CounterMeaning("deleted file read from memory", "The file is gone from disk; what the target has mapped was read."),
    CounterMeaning("broken ELF image in memory", "What is mapped there looks like a file and is none."),
    CounterMeaning("broken section headers", "The file's list of sections makes no sense; its segments were used."),
    CounterMeaning("shared debug file not found", "A debug file refers to another one (dwz) that is not installed."),
    CounterMeaning("debug file of another build", "A debug file was found by its name, but belongs to another build."),
    CounterMeaning("unreadable debug file", "A debug file was found and is broken."),
    CounterMeaning(
        "symbol file of another build, not used", "A Breakpad symbol file states another id than its module."
    ),
    CounterMeaning("symbol file that cannot be read", "A Breakpad symbol file was found and could not be opened."),
    CounterMeaning("symbol file: *", "A line of a Breakpad symbol file breaks the rules of the format: left out."),
    CounterMeaning("symbol server does not answer", "A server of symbol files is not asked again in this recording."),
    CounterMeaning("broken symbol table", "A file's symbol table makes no sense and was not used."),
    CounterMeaning(
        "broken DWARF", "A file's debug information is broken in part: lines or inlined functions are missing."
    ),
    CounterMeaning(
        "lines not looked up: out of time", "A file's debug information is so large that lines were left out."
    ),
    CounterMeaning("addresses of the kernel's functions are hidden", "sudo sysctl kernel.kptr_restrict=0 shows them."),
)

_TABLES = (
    CounterMeaning("*: broken, not used", "A file's unwind table is broken as a whole; the next source was asked."),
    CounterMeaning("*: broken entry, skipped", "One function's entry is broken; the next source was asked."),
    CounterMeaning("*: function with broken instructions", "One function's CFI is broken; the next source was asked."),
    CounterMeaning("*: unreadable FDE left out", "One function's entry cannot be read."),
    CounterMeaning("*: functions of an unreadable CIE left out", "What these functions have in common cannot be read."),
    CounterMeaning("* breaks off: the rest is not used", "The table ends within an entry."),
    CounterMeaning("*index said to be sorted is not", "It was sorted here."),
    CounterMeaning("exidx: index is not sorted", "It was sorted here."),
    CounterMeaning("exidx: index ends within an entry", "The last entry was left out."),
    CounterMeaning("exidx: broken entry left out", "One function's entry of .ARM.exidx is broken."),
    CounterMeaning("sframe: unknown flags", "The table is newer than this reader; what it knows was used."),
    CounterMeaning("sframe: functions have more rows than the header says", "The header's count was not believed."),
    CounterMeaning("sframe: function with broken rows", "One function's rows are broken; the next source was asked."),
    CounterMeaning("sframe: row of .plt.got corrected", "Linkers write a wrong row there (docs/sframe.md)."),
    CounterMeaning("STACK CFI*", "A row of a Breakpad symbol file is not usable, or in part."),
)

_RUN_TIME = (
    CounterMeaning(
        "libunwind: *", "What the target registered with libunwind changed while it was read, or is broken."
    ),
    CounterMeaning("gdb jit: *", "What the target registered for debuggers changed while it was read, or is broken."),
    CounterMeaning("jitdump: *", "The target's jitdump file is broken from some place on."),
    CounterMeaning("perf map: *", "The target's perf map has lines that are none, or too many."),
)

_PYTHON = (
    CounterMeaning(
        "python frames not read: *",
        "The process runs a Python whose frames we do not know; its stacks are native only.",
        "process{es} whose Python cannot be read",
    ),
    CounterMeaning("python frames beyond a native stack that is cut short", "Python functions further out are missing.",
                   "stack{s} that may lack Python functions"),
    CounterMeaning("python frames on no native frame", "Python functions were found and nothing says where they stand.",
                   "stack{s} with Python functions that have no place"),
    CounterMeaning("python frames without a mark on the C stack", "Their place among native frames was not certain."),
    CounterMeaning("evaluator on the stack without python frames",
                   "The interpreter stands on the stack and its functions there are not known.",
                   "stack{s} that may lack Python functions"),
    CounterMeaning("chain of python frames not whole",
                   "The interpreter's list of its functions could not be read to the end.",
                   "stack{s} that may lack Python functions"),
    CounterMeaning("chain of python frames: *",
                   "Why the interpreter's list of its functions could not be read to the end."),
    CounterMeaning(
        "stack goes on at the evaluator's mark, native frames before it may be missing",
        "No table led out of a native frame; the stack goes on where the interpreter says that it stood.",
    ),
    CounterMeaning(
        "python function freed before its name was read",
        "The function's code was gone when its name was looked up: it is shown as unknown.",
    ),
    CounterMeaning("reader of an interpreter's frames failed, its frames are left out",
                   "An error of pyprof's own: please report it.",
                   "sample{s} without Python functions"),
    CounterMeaning("--async: *", "--async was asked for and this Python does not tell."),
)  # fmt: skip

COUNTERS = (*_SAMPLES, *_TARGETS, *_FILES, *_TABLES, *_RUN_TIME, *_PYTHON)
"""The first that fits counts."""


@lru_cache(maxsize=1024)
def meaning_of(counter: str) -> CounterMeaning | None:
    """None of one that the table lacks."""
    return next((entry for entry in COUNTERS if _fits(entry.name, counter)), None)


def _fits(name: str, counter: str) -> bool:
    return bool(re.fullmatch(".*".join(map(re.escape, name.split("*"))), counter, re.DOTALL))


def lacking(counter: str, count: int) -> str:
    """What the profile lacks for it, "" if nothing: "3 samples lost"."""
    found = meaning_of(counter)
    if found is None or not found.lacks or not count:
        return ""
    return f"{count:,} " + found.lacks.replace("{s}", "s" * (count != 1)).replace("{es}", "es" * (count != 1))
