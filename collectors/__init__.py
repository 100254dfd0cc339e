"""The sources of samples, called collectors: BPF, perf_events, ptrace stops, GDB stubs, core files and crash
dumps.

base                     The protocol of a collector, which produces batches of samples until it is stopped, and the
                         histogram of its pauses
batch_builder            A builder of batches with their stack copies, and the division of batches at flushes
bpf/                     Samples taken by a program in the kernel (BPF)
combined/                The combined collector of a recording, which samples each thread by the source that the plan
                         names
context_switch_protocol  Context switches as a collector reports them: threads leave their processors and return
cpu_time_accounting      Processor time of the recorded processes as the kernel accounts it
gdb_stub/                Samples of a target behind a stub of the GDB remote serial protocol
linux/                   The kernel's interfaces: system calls, /proc, the state of a stopped task
native/                  Machine code for what Python does too slowly: rounds of samples by stops
offcpu/                  Off-CPU time: intervals between context switches, and the stacks that they are attributed to
perf/                    Samples of the kernel's perf_events
postmortem/              Samples of threads that no longer run: core files and crash dumps
ptrace/                  Samples of live processes, taken by short stops
registry                 The list of collectors for the command line, and the function that opens one
sampling_clock           The times of samples: one at random in each slot of a grid with the sampling period
sampling_source_plan     The plan of a recording: the source that samples each process and thread, and why
targets/                 The processes to record, checks whether they can be recorded, and their mappings over time
thread_start_times       The start times of threads: a tid that the kernel reuses is another thread
"""
