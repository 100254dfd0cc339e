"""Samples of live processes, taken by short stops.

collector          A collector that samples live processes by ptrace
cpu_bound          A check whether a thread keeps its processor until others want it
deep_stack         Stacks that are longer than what a stop may copy
guard              Protection of the time between a stop and its DETACH: signals wait, the garbage collector is off
idle_subsampling   Subsampling of idle threads: the threads that a round of samples checks, and their weights
interrupted_calls  The effect of a stop on a thread's system call: undone if possible, else counted
native_abi         The data that machine code gets for the rounds that it makes
native_loop        Rounds of samples by machine code, and the conversion of their results
native_memory      Access to interpreter frames that machine code has read in a stop
on_cpu             The threads that have a processor or were displaced by the sampler, by the kernel's counts of turns
opening            The function that opens the collector that samples by short stops
process            One sampled process: its threads, its address spaces, its end
processor_share    A runnable thread's share of a processor, which decides how often it is sampled
sampler            The sampling of one thread: without reading it, by reading from outside, or by a stop
scheduler          The times at which threads are sampled and at which a batch is yielded
stack_copy         The copy of a thread's stack, and of the memory with its interpreter's frames
stack_shape        The amount of a thread's stack to copy, learned for each thread from what the walks needed
stop               One stop of one thread: SEIZE, INTERRUPT, read registers and stack, DETACH
stopped_thread     A thread between SEIZE and DETACH, and the outcome of its stop
targets            The processes that are sampled by stops, their threads, and a record of those that ended
thread_choice      The selection of a process's threads for the recording, by name or otherwise
thread_rounds      The threads of a process, round by round: by machine code as far as possible, else in Python
threads            One thread of a target: its open /proc files, and the state of its sleep
young_threads      Sampling of threads that live too short for separate accounts
"""
