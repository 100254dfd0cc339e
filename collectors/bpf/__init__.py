"""Samples taken by a program in the kernel (BPF).

sampler.bpf.c is the program and awaiters.h a part of it. sampler.h has the structures that it shares with its
reader in Python. process_ends.bpf.c is another program, which reports ended processes. `build` compiles them
to sampler.MACHINE.o and process_ends.o.

bpf_object           A compiled BPF object made ready for the kernel: its maps, its programs, and offsets of the
                     kernel's structures
kernel_program       The program in the kernel with its maps and the events that trigger it
locks_and_wakers     The context of waits: the lock that a thread waited for, and the thread that ended the wait
long_stacks          The memory of long stacks, reassembled from the changed pages that the BPF program sends
on_cpu_samples       Samples of running threads: registers, stack and interpreter frames of one instant
process_ends         Processes that have ended, each with its processor time
recorded_processes   The processes that the BPF program samples, with the readers of their interpreters
ring_buffer_records  The ring that the programs in the kernel fill, its records as columns, and the values of the maps
samples_from_ring    The samples in the ring of the BPF program as columns, and the limits for recording single waits
wait_durations       Waits as the kernel reports them: the time that each stack stands for, and time without a stack
wall_clock_samples   Threads' wall-clock time by a program in the kernel, with the stacks of waits
"""
