"""The one table of reasons: everything that is lost, skipped, cut short or refused, with what it means to the reader.

A reason's name is what the code counts (Diagnostics.count), the label of how a stack ended, or what an error says of
itself (PyprofError.reason). Names are stable: they stand in JSON. In a name of the table `*` stands for anything: a
file's section, a cause. Counters, the summary, the terminal, the page and docs/formats.md take their words from here,
by reasons.py.
"""

from __future__ import annotations

from enum import Enum

from pyprof.records import dataclass


class Stage(Enum):
    """Where on the way of the data it happens."""

    OPTIONS = "options"
    TARGET = "target"
    SAMPLING = "sampling"
    FILES = "files"
    TABLES = "unwind tables"
    STACKS = "stacks"
    RUN_TIME_CODE = "run-time code"
    INTERPRETER = "interpreter"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Reason:
    """sentence: what it means. retry: what makes it go away the next time, "" if nothing is known to.

    lacks: what the profile lacks for a counter, as in "3 samples lost", "" if nothing that matters; {s} is the plural's
    s, `*` what it stands for at the end of the name. words: of how a stack ended, its label for people; cuts: such a
    stack is cut short.
    """

    name: str
    stage: Stage
    sentence: str
    retry: str = ""
    lacks: str = ""
    words: str = ""
    cuts: bool = False

    @property
    def title(self) -> str:
        """What is said of stacks that ended so, in every output."""
        return f"cut short: {self.words}" if self.cuts else self.words

    @property
    def meaning(self) -> str:
        """The sentence, and what helps."""
        return f"{self.sentence} What helps: {self.retry}." if self.retry else self.sentence


# fmt: off
ENDS = (
    Reason("root", Stage.STACKS, "The stack is whole: it reaches the thread's first function.", words="whole"),
    Reason("running", Stage.STACKS, "The walk was not finished. Nobody should see this: please report it.",
           words="walk not finished", cuts=True),
    Reason("no_rule", Stage.STACKS,
           "No unwind table covers an address, and frame pointers did not lead on either.",
           retry="a file with unwind tables or a symbol file (--symbols); pyprof inspect FILE says what a file has",
           words="no unwind rule", cuts=True),
    Reason("unreadable", Stage.STACKS,
           "The next frame needed memory that the copy of the stack does not hold.",
           retry="a larger --stack-size, where the marker in the picture names one",
           words="stack not readable", cuts=True),
    Reason("stuck", Stage.STACKS,
           "The next frame would lie inside the one before: a table or the stack is wrong there.",
           words="stack does not ascend", cuts=True),
    Reason("depth", Stage.STACKS, "The stack has more frames than are walked.",
           retry="a larger --max-depth", words="maximum depth", cuts=True),
    Reason("not_sampled", Stage.SAMPLING,
           "Processor time that no sample stands for: of threads or processes that ran too short, whose records were "
           "lost, or in the kernel where it may not be sampled. The marker in the picture says which.",
           retry="a higher rate (-r) where they ran too short, a lower one where records were lost",
           words="not sampled"),
    Reason("no_*", Stage.INTERPRETER,
           "The native stack is whole and runs functions of that language which nobody read: functions_missing says in "
           "which processes.",
           retry="the option that the summary names, where one has them", words="without * functions"),
    Reason("partly_interpreted", Stage.INTERPRETER,
           "The stack is whole and has some of its interpreter's functions, not all.",
           words="without some of their interpreter's functions"),
)

SAMPLING = (
    Reason("sample lost: the ring was full", Stage.SAMPLING,
           "The kernel had no room for a sample: pyprof was too slow to read the ones before.",
           retry="a lower rate (-r) or a smaller --stack-size",
           lacks="sample{s} lost"),
    Reason("record of a switch lost: the ring was full", Stage.SAMPLING,
           "The kernel had no room to say when a thread left its processor or came back: that time is counted like "
           "the time around it.",
           retry="a lower rate (-r)",
           lacks="switch{es} not recorded"),
    Reason("kernel throttled the sampling (kernel.perf_event_max_sample_rate)", Stage.SAMPLING,
           "The kernel left out samples because they came faster than it allows.",
           retry="a lower rate (-r), or a higher kernel.perf_event_max_sample_rate",
           lacks="time{s} throttled by the kernel"),
    Reason("sample without registers (a thread that ends)", Stage.SAMPLING,
           "The kernel took a sample of a thread whose memory was gone already: it has no stack."),
    Reason("sample of a kernel thread", Stage.SAMPLING,
           "The processor worked for the kernel itself, in no process. Such samples are in no profile."),
    Reason("sample of a process that is not known", Stage.SAMPLING,
           "The sample is of a process that ended before it could be looked at, or that may not be looked at.",
           lacks="sample{s} of processes that could not be looked at"),
    Reason("stack longer than a record of the kernel's program holds", Stage.SAMPLING,
           "A program in the kernel copies 256 KB of a stack. Such threads are stopped for their samples."),
    Reason("stack's end not known while mappings change", Stage.SAMPLING,
           "The first sample of a thread came while its process changed its mappings. 64 KB of its stack were copied."),
    Reason("kernel's program had no more time for a sample", Stage.SAMPLING,
           "The program in the kernel had worked for more than 1 ms on a sample: frames or a part of the "
           "stack are missing."),
    Reason("end of a wait found no room in the ring", Stage.SAMPLING,
           "The ring was full when a thread came back to its processor: this time is in its thread's sum, without "
           "a stack.",
           retry="a longer --min-block"),
    Reason("arrival of a thread at a processor that the kernel did not tell", Stage.SAMPLING,
           "The kernel did not report a switch: such a wait ends with its wake-up, its time for a processor is "
           "missing."),
    Reason("thread of an interpreter's process without a state in it", Stage.INTERPRETER,
           "The interpreter did not know the thread when it was sampled: it runs native code only, or has just begun."),
    Reason("the process that parses is not confined", Stage.OPTIONS,
           "The kernel refused a filter of system calls (seccomp), or there is none for this machine: a hole in a "
           "parser would be one with the rights that are left."),
    Reason("search for an interpreter in files that took too long", Stage.INTERPRETER,
           "The process that parses did not say in ten seconds whether a program's files hold an interpreter: its "
           "functions are missing.",
           retry="recording again when the machine is less busy",
           lacks="program{s} whose interpreter was not found"),
    Reason("interpreter's frame that was not in memory", Stage.INTERPRETER,
           "A program in the kernel cannot read what was swapped out: the functions outside of that one are missing."),
    Reason("more frames of an interpreter than a record of the kernel's program holds", Stage.INTERPRETER,
           "It holds 1,024 of them, the innermost ones: those outside are missing.",
           retry="--collector ptrace"),
    Reason("ring held something else than records", Stage.SAMPLING,
           "What stood in the memory that the kernel shares with us made no sense and was passed over.",
           lacks="piece{s} of the kernel's records not understood"),
    Reason("thread blocked before the stop", Stage.SAMPLING,
           "The thread was listed as running and had blocked when it was stopped. It is not counted as running. "
           "Nothing is missing."),
    Reason("thread ran while it was read from outside", Stage.SAMPLING,
           "A sleeping thread woke up while its stack was read, so that the stack might be a mix of two: not used."),
    Reason("sleeping thread not stopped: its system call might fail", Stage.SAMPLING,
           "Only a stop could have shown the thread's whole stack, and its system call is one that a stop ends with "
           "EINTR: the stack stays cut short."),
    Reason("sample not unwound: out of time", Stage.SAMPLING,
           "The recording had ended, and what came before took too long.",
           lacks="sample{s} whose stack was not unwound"),
    Reason("modules changed while a sample was taken", Stage.SAMPLING,
           "The target mapped or unmapped a file at that moment; what is mapped was read again."),
    Reason("stack longer than --stack-size, cut there", Stage.SAMPLING,
           "What was copied of the stack does not agree with what was read of it before, so that its outer part is "
           "unknown.",
           retry="the --stack-size that the marker in its place names",
           lacks="stack{s} longer than --stack-size"),
    Reason("stack completed by the outer frames of a later one of its thread", Stage.SAMPLING,
           "The stack was cut short, and a later, whole one of the same thread had the same frames at the same place."),
)

TARGET = (
    Reason("* ended before its first sample", Stage.TARGET,
           "It lived too short to be found and sampled.",
           lacks="process{es} ended before the first sample"),
    Reason("* may not be looked at", Stage.TARGET,
           "We lack the right to see the process.",
           retry="pyprof doctor PID says which right is missing",
           lacks="process{es} not allowed to be looked at"),
    Reason("process may not be looked at any more", Stage.TARGET,
           "The process took away our right while it was recorded, for instance by running a set-uid program.",
           retry="as root, or with CAP_SYS_PTRACE",
           lacks="process{es} not allowed to be looked at any more"),
    Reason("thread may not be traced", Stage.TARGET,
           "Somebody else traces the thread, or we lack the right to stop it.",
           retry="pyprof doctor PID says why",
           lacks="thread{s} not allowed to be stopped"),
    Reason("thread held by a debugger", Stage.TARGET,
           "A debugger or strace traces the thread: it cannot be sampled by stops.",
           retry="--collector perf, or without the debugger",
           lacks="thread{s} held by a debugger"),
    Reason("thread did not stop within 0.1 s", Stage.TARGET,
           "The kernel was asked to stop the thread, which came late, for instance from an uninterruptible wait; it "
           "was let go on as soon as it stopped."),
    Reason("thread ran code of another architecture", Stage.TARGET,
           "Its registers are of a kind that is not unwound.",
           lacks="sample{s} of another architecture"),
    Reason("thread ended while it was looked at", Stage.TARGET,
           "It was listed, and gone when its registers were asked for."),
    Reason("too many processes began at once to follow them all", Stage.TARGET,
           "Some children were not sampled.",
           lacks="time{s} that too many processes began at once"),
    Reason("system call of the target restarted", Stage.TARGET,
           "A stop came just as the thread entered a system call; the call was begun anew, as after any signal."),
    Reason("system call of the target may have failed with EINTR", Stage.TARGET,
           "A stop came just as the thread entered a system call that cannot be begun anew (docs/safety.md).",
           lacks="system call{s} of the target that may have failed with EINTR"),
    Reason("system call of the target cut short by a stop: *", Stage.TARGET,
           "The call was under way when its thread was stopped, and has transferred less than it was asked for, as "
           "after a signal (docs/safety.md).",
           retry="a collector that stops nothing (--collector perf)",
           lacks="system call{s} of the target cut short by a stop (*)"),
    Reason("connection to the stub ended early", Stage.TARGET,
           "The GDB stub is gone; what was recorded until then is kept.",
           lacks="connection{s} ended early"),
    Reason("file fetched through the stub", Stage.TARGET,
           "An object file was not here and was read through the GDB stub."),
)

FILES = (
    Reason("file differs from the mapped one", Stage.FILES,
           "The file was replaced since it was mapped, so its memory is read."),
    Reason("file of a module not found", Stage.FILES,
           "Neither by its name nor through /proc: its functions have no names.",
           retry="with the file in its place, or a symbol file (--symbols)"),
    Reason("file could not be compared with the mapped one", Stage.FILES,
           "Nothing proves that it is the same: not used."),
    Reason("neither file nor symbol file of a module found", Stage.FILES,
           "Its functions have no names.",
           retry="with a symbol file (--symbols)"),
    Reason("deleted file read from memory", Stage.FILES,
           "The file is gone from disk; what the target has mapped was read."),
    Reason("broken ELF image in memory", Stage.FILES,
           "What is mapped there looks like a file and is none."),
    Reason("broken section headers", Stage.FILES,
           "The file's list of sections makes no sense; its segments were used."),
    Reason("broken section headers of a windows module", Stage.FILES,
           "The list of sections of a Windows module makes no sense; its headers alone were used."),
    Reason("shared debug file not found", Stage.FILES,
           "A debug file refers to another one (dwz) that is not installed."),
    Reason("debug file of another build", Stage.FILES,
           "A debug file was found by its name, but belongs to another build."),
    Reason("unreadable debug file", Stage.FILES,
           "A debug file was found and is broken."),
    Reason("symbol file of another build, not used", Stage.FILES,
           "A Breakpad symbol file states another id than its module."),
    Reason("symbol file that cannot be read", Stage.FILES,
           "A Breakpad symbol file was found and could not be opened."),
    Reason("symbol file: *", Stage.FILES,
           "A line of a Breakpad symbol file breaks the rules of the format: left out."),
    Reason("symbol server does not answer", Stage.FILES,
           "A server of symbol files is not asked again in this recording.",
           retry="later, or with the symbol files on this machine (--symbols)"),
    Reason("file not read: its file system does not answer", Stage.FILES,
           "A FUSE or network file system was silent for two seconds; it is asked for nothing more."),
    Reason("broken symbol table", Stage.FILES,
           "A file's symbol table makes no sense and was not used."),
    Reason("broken DWARF", Stage.FILES,
           "A file's debug information is broken in part: lines or inlined functions are missing."),
    Reason("lines not looked up: out of time", Stage.FILES,
           "A file's debug information is so large that lines were left out."),
    Reason("names not looked up: out of time", Stage.FILES,
           "The recording had ended, and reading a file's names took too long."),
    Reason("addresses of the kernel's functions are hidden", Stage.FILES,
           "kernel.kptr_restrict hides them: the kernel's functions have no names.",
           retry="sudo sysctl kernel.kptr_restrict=0"),
)

TABLES = (
    Reason("*: broken, not used", Stage.TABLES,
           "A file's unwind table is broken as a whole; the next source was asked."),
    Reason("unwind rules that compute too much", Stage.TABLES,
           "The expressions of a file's unwind rules used up what a stack, or a second of a recording, may cost.",
           retry="another source of rules for that file (--unwind)"),
    Reason("*: broken entry, skipped", Stage.TABLES,
           "One function's entry is broken; the next source was asked."),
    Reason("*: function with broken instructions", Stage.TABLES,
           "One function's CFI is broken; the next source was asked."),
    Reason("*: unreadable FDE left out", Stage.TABLES,
           "One function's entry cannot be read."),
    Reason("*: functions of an unreadable CIE left out", Stage.TABLES,
           "What these functions have in common cannot be read."),
    Reason("* breaks off: the rest is not used", Stage.TABLES,
           "The table ends within an entry."),
    Reason("*index said to be sorted is not", Stage.TABLES,
           "It was sorted here."),
    Reason("exidx: index is not sorted", Stage.TABLES,
           "It was sorted here."),
    Reason("exidx: index ends within an entry", Stage.TABLES,
           "The last entry was left out."),
    Reason("exidx: broken entry left out", Stage.TABLES,
           "One function's entry of .ARM.exidx is broken."),
    Reason("sframe: unknown flags", Stage.TABLES,
           "The table is newer than this reader; what it knows was used."),
    Reason("sframe: functions have more rows than the header says", Stage.TABLES,
           "The header's count was not believed."),
    Reason("sframe: function with broken rows", Stage.TABLES,
           "One function's rows are broken; the next source was asked."),
    Reason("sframe: row of .plt.got corrected", Stage.TABLES,
           "Linkers write a wrong row there (docs/sframe.md)."),
    Reason("STACK CFI*", Stage.TABLES,
           "A row of a Breakpad symbol file is not usable, or in part."),
)

RUN_TIME_CODE = (
    Reason("libunwind: *", Stage.RUN_TIME_CODE,
           "What the target registered with libunwind changed while it was read, or is broken."),
    Reason("gdb jit: *", Stage.RUN_TIME_CODE,
           "What the target registered for debuggers changed while it was read, or is broken."),
    Reason("jitdump: *", Stage.RUN_TIME_CODE,
           "The target's jitdump file is broken from some place on."),
    Reason("perf map: *", Stage.RUN_TIME_CODE,
           "The target's perf map has lines that are none, or too many."),
)

INTERPRETER = (
    Reason("python frames not read: *", Stage.INTERPRETER,
           "The process runs a Python whose frames we do not know; its stacks are native only.",
           retry="pyprof doctor PID says which versions are known",
           lacks="process{es} whose Python cannot be read"),
    Reason("python frames beyond a native stack that is cut short", Stage.INTERPRETER,
           "Python functions further out are missing.",
           lacks="stack{s} that may lack Python functions"),
    Reason("python frames on no native frame", Stage.INTERPRETER,
           "Python functions were found and nothing says where they stand.",
           lacks="stack{s} with Python functions that have no place"),
    Reason("python frames without a mark on the C stack", Stage.INTERPRETER,
           "Their place among native frames was not certain."),
    Reason("evaluator on the stack without python frames", Stage.INTERPRETER,
           "The interpreter stands on the stack and its functions there are not known.",
           lacks="stack{s} that may lack Python functions"),
    Reason("chain of python frames not whole", Stage.INTERPRETER,
           "The interpreter's list of its functions could not be read to the end.",
           lacks="stack{s} that may lack Python functions"),
    Reason("more python frames than are copied", Stage.INTERPRETER,
           "The outermost functions of a deep recursion are missing; the marker says about how many.",
           "what the marker names: a larger --stack-size, or --collector ptrace",
           lacks="stack{s} with more Python functions than are copied"),
    Reason("chain of python frames: *", Stage.INTERPRETER,
           "Why the interpreter's list of its functions could not be read to the end."),
    Reason("stack goes on at the evaluator's mark, native frames before it may be missing", Stage.INTERPRETER,
           "No table led out of a native frame; the stack goes on where the interpreter says that it stood."),
    Reason("python function freed before its name was read", Stage.INTERPRETER,
           "The function's code was gone when its name was looked up: it is shown as unknown."),
    Reason("reader of an interpreter's frames failed, its frames are left out", Stage.INTERPRETER,
           "An error of pyprof's own: please report it.",
           lacks="sample{s} without Python functions"),
    Reason("--async: *", Stage.INTERPRETER,
           "--async was asked for and this Python does not tell."),
)

REFUSALS = (
    Reason("usage", Stage.OPTIONS, "The options cannot be met: one contradicts another, or names what is not there.",
           retry="pyprof COMMAND --help"),
    Reason("missing_library", Stage.OPTIONS, "What is asked for needs a Python library that is not installed."),
    Reason("command_not_found", Stage.TARGET, "The command to record does not exist.",
           retry="the path of the program"),
    Reason("command_not_executable", Stage.TARGET, "The command to record exists and cannot be executed."),
    Reason("no_process", Stage.TARGET, "There is no such process, or no longer.", retry="ps -e lists the processes"),
    Reason("access_denied", Stage.TARGET, "The kernel does not let pyprof read the process.",
           retry="pyprof doctor PID says what is missing"),
    Reason("not_traceable", Stage.TARGET,
           "The process cannot be sampled: it has ended, is the kernel's or pyprof's own, or a debugger traces it.",
           retry="pyprof doctor PID"),
    Reason("unknown_architecture", Stage.TARGET, "The target runs code of an architecture that pyprof cannot unwind."),
    Reason("stub_failed", Stage.TARGET,
           "The remote stub cannot be reached, breaks the protocol or cannot do what is asked.",
           retry="docs/remote.md says what stubs need"),
    Reason("stub_lost", Stage.TARGET, "The connection to the remote stub has ended, or the stub fell silent."),
    Reason("collector_refused", Stage.SAMPLING, "This way of taking samples cannot be used here; another one may.",
           retry="--collector auto, or pyprof doctor PID, which names all of them"),
    Reason("worker_died", Stage.STACKS,
           "The process that unwinds and names has ended: windows that were written stay, the one under way is lost.",
           retry="a signal 9 is mostly the kernel's, which was out of memory: shorter windows (--every)"),
    Reason("malformed", Stage.FILES, "A file or a table breaks its own format."),
    Reason("recording_unreadable", Stage.FILES,
           "A recording, or another profiler's file, is none, is broken, or is of a newer version."),
    Reason("not_written", Stage.OUTPUT, "The output cannot be written.", retry="-o FILE in another place"),
    Reason("failed", Stage.TARGET, "What was asked for cannot be done; the message says why."),
)

# fmt: on
