"""The values of pyprof: samples, walks, stacks, profiles. This package does no I/O and makes no policy decisions.

application       Predicates that tell application code from libraries and runtimes, by the path of a file
arch              Supported architectures, as data
arch_arm          AArch64 and ARM (A32 and T32), each also with big-endian data
arch_calls        Numbers of the system calls in which threads sleep, by architecture (the kernel's asm/unistd.h)
arch_parts        The parts of an Arch: properties of its code, its signal frames, its kernel interface
arch_ppc          ppc64le: 64-bit PowerPC, little-endian, ELFv2 ABI
arch_riscv        riscv64: 64-bit RISC-V, little-endian, with or without compressed instructions
arch_s390         s390x and s390: 64-bit and 31-bit, big-endian
arch_type         The definition of an architecture, as a value
arch_x86          x86_64, x32 and i386
call_names        Names of Linux system calls by number, from python-ptrace's tables
call_tree         A profile as a tree of function calls
jit_code_map      Descriptions of code that no file contains, by address and time
code_table        Names of code by address and time, in columns
compilers         The file that a compiler works on, by its command line
columns           Functions on columns of integers that avoid numpy.ma
quality           Totals over the samples of a profile: ends of stacks, sources of frames, modules
gaps              Parts of a profile's time in which nothing was recorded: gaps between merged recordings
functions         The functions of a profile and their costs, independent of where they were mapped
idle              Waits of idle threads: pools that wait for work, event loops, processes that supervise others
idle_loops        The loops in which threads wait for work, by the functions of their stacks
interpreter       The state of an interpreter in a sampled thread: runs of its frames, and their places
keys              Keys of threads and processes: number and start time, so that a reused number is another key
labels            Labels that a user gives to a recording
window_merge      Several profiles in one set of tables: equal entries become one
blocked_frame     Frames inside the innermost user frame: kernel frames, and the call in which a thread sleeps
line_costs        Costs of each source line and each code address of a profile
markers           Markers: frames without code that tell what is missing in a stack
merge_tables      Merges the windows of one recording, one after the other
modules           Address spaces: the lines of /proc/PID/maps and the modules behind them
callers           Callers and callees of a function
overlaps          Overlaps among many address ranges
pauses            Histogram of pause lengths, which needs constant memory
profile           A finished profile: an immutable value with everything that an exporter needs
reason            A reason why something is lost, skipped, truncated or refused, as a value
reason_requests   Reasons why the server refuses a request, or the agent a requested recording
reason_sentences  Reasons whose text has arguments: of one file, of a recording, in a stack
reason_conditions  Reasons why an agent does not do all of its work
reason_pushes     Reasons why segments are not sent
reason_table      The table of reasons: everything that is lost, skipped, truncated or refused
reasons           Reasons by name: the meaning of counters, ends of stacks, refusals, problems of files
recursion         Collapses direct recursion: repeated frames of one function become one
sample            Batches of samples in columns, from every collector to the unwinder
secret_text       Redacts passwords and tokens in text, by the names that they have
filter            Selects a part of a profile's samples
merge             Merges profiles of several processes or machines, or parts of one recording
share_interval    Confidence interval of a share, by the number of samples behind it
source_text       A source file as it was read
stack_digest      Digests that identify stacks by their content, in every file
stacks            Stacks of a recording as nodes of a prefix tree of frames
profile_sum       Adds up the summaries of several recordings, or of windows of one
summary           Facts about a recording, as numbers: the summary panel and `--summary FILE`
table             A profile as a table, for libraries of data frames
control_characters  Characters of a text that must not be shown as they are
threads           Stacks of threads at one moment, as values
tree              Prefix trees of frames
walk              The result of unwinding: frames, the source of each, and why each stack ended
x86_epilogue      x86-64 instructions on a straight path to a return
x86_frames        Frames and calls of x86 code with frame pointers
x86_length        Length of an x86 instruction, in 64-bit and in 32-bit code
"""
