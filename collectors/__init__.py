"""Where samples come from.

bpf/               Samples by a program in the kernel (BPF)
gdb/               Samples of a target behind a stub of the GDB remote serial protocol
hybrid/            Which thread is sampled by which collector while a recording runs
linux/             The kernel's interfaces: system calls, /proc, what a stopped task says
native/            What has to be quicker than Python: rounds of samples by stops, as machine code
offcpu/            Time off the processor: intervals between switches, and the stacks that they are attributed to
perf/              Samples from the kernel's perf_events
postmortem/        Samples of threads that no longer run: core files and crash dumps
ptrace/            Samples of live processes by short stops
replay/            Saving the batches of a collector, and playing them again
targets/           Which processes are recorded, whether that will work, and what is mapped in them over time
base               What a collector is: it produces sample batches until it is stopped
batch_builder      A batch while it is filled: columns of samples and the memory that the stack copies go into
closed_collectors  Statistics and threads of collectors that are closed already
cpu_accounts       Processor time of the recorded processes by the kernel's accounts
flush              Batches that are cut at the times of requested flushes
registry           Which collector records a process: by name, or what is allowed here and sees whole stacks
sampling_clock     When to sample: a grid of slots of 1/rate, one sampling time at random in each
switch_events      Context switches as a collector reports them: threads leave their processors and come back
thread_lives       When the threads of a recording began: a tid that the kernel gives again is another thread
"""
