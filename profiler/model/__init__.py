"""The values of pyprof: samples, walks, stacks, profiles. This package does no I/O and makes no policy decisions.

application_code        Predicates that tell application code from libraries and runtimes, by the path of a file
arch                    Supported architectures, as data
arch_arm                AArch64 and ARM (A32 and T32), each also with big-endian data
arch_ppc                ppc64le: 64-bit PowerPC, little-endian, ELFv2 ABI
arch_riscv              riscv64: 64-bit RISC-V, little-endian, with or without compressed instructions
arch_s390               s390x and s390: 64-bit and 31-bit, big-endian
arch_type               The definition of an architecture, as a value
arch_x86                x86_64, x32 and i386
call_tree               A profile as a tree of function calls, and a profile without direct recursion
columns                 Functions on columns of integers that avoid numpy.ma
compiler_command_lines  The file that a compiler works on, by its command line
function_costs          The functions of a profile and their costs, independent of where they were mapped
goroutine_pieces        Goroutines of Go programs: where a thread's goroutine is, and how a sample carries it
idle_loops              The loops in which threads wait for work, by the functions of their stacks
idle_waits              Waits of idle threads: pools that wait for work, event loops, processes that supervise others
incremental_merge       Merges the windows of one recording, one after the other
interpreter_state       The state of an interpreter in a sampled thread: runs of its frames, and their places
jit_code_map            Descriptions of code that no file contains, by address and time
jit_symbol_table        Names of code by address and time, in columns
labels                  Labels that a user gives to a recording
line_costs              Costs of each source line and each code address of a profile, and a source file as it was read
marker_frames           Frames without code: markers of what is missing, kernel frames, and blocked system calls
merge                   Merges profiles of several processes or machines, or parts of one recording, with their gaps
modules                 Address spaces: the lines of /proc/PID/maps and the modules behind them
pause_histogram         Histogram of pause lengths, which needs constant memory
prefix_tree             Prefix trees of frames
profile                 A finished profile: an immutable value with everything that an exporter needs
reason                  A reason why something is lost, skipped, truncated or refused, as a value
fleet_reasons           Reasons of the agent and the server: unsent segments, refusals, conditions
reason_sentences        Reasons whose text has arguments: of one file, of a recording, in a stack
reason_table            The table of reasons: everything that is lost, skipped, truncated or refused
reasons                 Reasons by name: the meaning of counters, ends of stacks, refusals, problems of files
sample_batch            Batches of samples in columns, from every collector to the unwinder
sample_filter           Selects a part of a profile's samples
sample_table            A profile as a table, for libraries of data frames
secret_text             Redacts passwords and tokens in text, by the names that they have
share_interval          Confidence interval of a share, by the number of samples behind it
stack_digest            Digests that identify stacks by their content, in every file
stack_quality           Totals over the samples of a profile: ends of stacks, sources of frames, modules
stacks                  Stacks of a recording as nodes of a prefix tree of frames
summary                 Facts about a recording, as numbers: the summary panel and `--summary FILE`
summary_sum             Adds up the summaries of several recordings, or of windows of one
syscalls                Numbers of system calls in which threads sleep, by architecture, and names of all calls
thread_keys             Keys of threads and processes: number and start time, so that a reused number is another key
thread_stacks           Stacks of threads at one moment, as values
walk                    The result of unwinding: frames, the source of each, and why each stack ended
x86_length              Length of an x86 instruction, in 64-bit and in 32-bit code
x86_prologues           Frames and calls of x86 code with frame pointers
"""
