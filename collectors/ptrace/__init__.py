"""Samples of live processes, taken by short stops.

collector               A collector that samples live processes by ptrace
copy_size               The amount of a thread's stack to copy, learned for each thread from what the walks needed
deep_stack              Stacks that are longer than what a stop may copy
goroutine_copy          The copy of a goroutine's stack, which a stopped thread of a Go program has left
interrupted_calls       The effect of a stop on a thread's system call: undone if possible, else counted
native_loop             Rounds of samples by machine code, and the conversion of their results
native_round_data       The data that machine code gets for its rounds, and access to the frames that it has read
on_cpu                  The threads that have a processor or were displaced by the sampler
process                 One sampled process: its threads, its address spaces, its end
scheduler               The times at which threads are sampled and at which a batch is yielded
stack_copy              The copy of a thread's stack, and of the memory with its interpreter's frames
targets                 The processes that are sampled by stops, their threads, and a record of those that ended
thread_choice           The threads of a process that are recorded, and those of them that a round checks
thread_processor_share  A runnable thread's share of a processor: its own, or that of all short-lived threads
thread_rounds           The threads of a process, round by round: by machine code as far as possible, else in Python
thread_sampler          The sampling of one thread: without reading it, by reading from outside, or by a stop
thread_stop             One stop of one thread: SEIZE, INTERRUPT, read registers and stack, DETACH
threads                 One thread of a target: its /proc files, its sleep, its use of a processor, its stop
wall_times              The wall-clock time that samples stand for, by the clock and the kernel's account of each thread
"""
