"""Samples taken by a program in the kernel (BPF).

sampler.bpf.c is the program and awaiters.h a part of it. sampler.h has what it shares with its reader.
process_ends.bpf.c is another program, for ended processes. `build` compiles them to sampler.MACHINE.o and
process_ends.o.

abi              The contents of sampler.h as columns
bpf_object       A compiled BPF object made ready for the kernel: its maps, its type information, its programs
collector        A collector that uses the program: registers, stack and interpreter frames of one instant
kernel_types     Offsets of fields in the running kernel's structures, from the kernel's type information
lock_waits       Waits for locks: the lock, and the time until the thread got it
on_cpu_times     The time that samples of running threads stand for, from the kernel's account of their turns
process_ends     Processes that have ended, each with its processor time
records          Records of the ring as columns
ring             The ring buffer that the programs fill, read without a copy
sample_source    The source of samples for the collector that tracks the processes
sampler          The program in the kernel with its maps and the events that trigger it
wait_accounting  Waits as the kernel reports them: the time that each stack stands for, and time without a stack
wait_collector   A collector of threads' wall-clock time, with the stacks of waits
wait_context     The context of waits: the lock outside each stack, and inside it the waker
wait_rates       The limits for recording single waits: as many as can be unwound, shorter ones if there are few
wakers           The waker of a thread as the kernel reports it, and what that means for the wait
"""
