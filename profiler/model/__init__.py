"""The values that travel through pyprof: samples in, walks, stacks, profiles out. No I/O, no policy.

application       Predicates that tell application code from libraries and runtimes, by the path of a file
arch              Architectures as data
arch_arm          AArch64 and ARM (A32 and T32), each also with big-endian data
arch_calls        Numbers of the system calls in which threads sleep, by architecture (the kernel's asm/unistd.h)
arch_parts        The parts of an Arch: what its code says of calls and frames, its signal frames, what its kernel says
arch_ppc          ppc64le: 64-bit PowerPC, little-endian, ELFv2 ABI
arch_riscv        riscv64: 64-bit RISC-V, little-endian, with compressed instructions or without
arch_s390         s390x and s390: 64-bit and 31-bit, big-endian
arch_type         What an architecture is, as a value
arch_x86          x86_64, x32 and i386
call_names        Names of Linux' system calls by number, from python-ptrace's tables
call_tree         A profile as a tree of function calls
code              Code that no file describes: who described which addresses, and when that was true
code_table        Names of code by address and time, in columns
columns           What is in a column of integers, without numpy.ma
contents          What the samples of a profile amount to
gaps              Parts of a profile's time in which nothing was recorded: between recordings that are merged
functions         The functions of a profile, the same wherever they were mapped, and what each cost
idle              Waits of idle threads: pools that wait for work, event loops, processes that supervise others
idle_loops        The loops in which threads wait for work, by the functions of their stacks
interpreter       What an interpreter was doing in a thread when its sample was taken
keys              Keys of threads and processes: number and start time, so that a reused number is another key
labels            Labels: what a user says of a recording
joined            Several profiles in one set of tables: what is the same in two of them is one
kernel            What stands inside the innermost frame of user code
line_costs        What each source line of a profile cost, and each address of code
markers           Markers: frames without code that say what a stack lacks
merged            Profiles of one recording, window after window, as one
modules           What is mapped where: the lines of /proc/PID/maps and the modules behind them
neighbours        Who calls a function, and what it calls
overlaps          Which of many address ranges are overlapped by others
pauses            Lengths of pauses as counts, so that a recording of days needs no more memory than one of seconds
profile           A finished profile: everything that an exporter needs, and nothing that it could change
reason            A reason for which something is lost, skipped, cut short or refused, as a value
reason_requests   Why the server refuses a request, and the agent a recording that it is asked for
reason_sentences  The rows of that table whose words have arguments: of one file, of a recording, in a stack
reason_pushes     The rows of the one table of reasons for segments that are not sent
reason_table      The one table of reasons: everything that is lost, skipped, cut short or refused
reasons           Reasons by name: what a counter means, how a stack ended, why something was refused, what a file lacks
recursion         A profile whose functions do not call themselves: rounds of direct recursion are one frame
sample            Samples in columns: what every collector produces and the unwinder consumes
secret_text       What of a text is secret: passwords and tokens, by the names that they have
selected          A profile of some of another one's samples
several           Several profiles as one: recordings of several processes or machines, or parts of one recording
share_interval    How far a share is known, by the samples behind it
source_text       A source file as it was read
stack_digest      What tells stacks apart by their content, the same in every file
stacks            Stacks while recording: a sample ends as one integer, a node of a prefix tree of frames
summed            What several recordings, or windows of one, did together
summary           What a recording did, as numbers: the summary panel and `--summary FILE`
table             A profile as a table, for libraries of data frames
text              What of a text is not shown as it is
threads           Stacks of threads at one moment, as values
tree              Prefix trees of frames
walk              What a walk found: frames of all lanes, how each was found, and why each lane ended
x86_epilogue      x86-64 instructions that a straight way to a return is made of
x86_frames        What x86 code that is built with frame pointers says about its frames and its calls
x86_length        How long an x86 instruction is, in 64-bit and in 32-bit code
"""
