"""Samples of live processes by short stops.

collector          Samples of live processes by ptrace
deep_stack         Stacks that are longer than what a stop may copy
frames_ahead       An interpreter's frames that machine code has read in a stop, as their reader asks for them
guard              Nothing of ours may come between a stop and its DETACH: signals wait, the garbage collector is off
held_thread        A thread between SEIZE and DETACH, and how its stop ends
idle_subsampling   Subsampling of idle threads: which threads a round of samples checks, and with which weight
interrupted_calls  What our stop has done to the system call of a thread: undone where that can be, else counted
opening            Opens the collector that samples by short stops
process            One process that is sampled: its threads, its address spaces, its end
processor_share    Processor time of a runnable thread as a share, by which it is sampled
quick_rounds       Rounds of samples by machine code, and what becomes of what it brings
round_rows         What machine code is told of the rounds that it makes
sampler            How one thread gets its sample: not at all, from outside, or by a stop
scheduler          When the threads are sampled, and when a batch leaves
stack_copy         The copy of a thread's stack, and of the memory in which its interpreter's frames are
stack_shape        How much of a thread's stack to copy: learned per thread from what the walks needed
steadiness         Does a thread keep its processor until others want it?
stop               One stop of one thread: SEIZE, INTERRUPT, read registers and stack, DETACH
targets            The processes that are sampled by stops, their threads, and what is remembered of those that ended
thread_choice      Which threads of a process are sampled: those that the recording asks for, by name or otherwise
thread_rounds      The threads of a process, round by round: by machine code as far as it goes, else in Python
threads            One thread of a target: its open /proc files and what is known about its sleep
turns              Who has a processor, and whom we have displaced: by the kernel's counts of each thread's turns
young_threads      Sampling of threads that live too short to have accounts of their own
"""
