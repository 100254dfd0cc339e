"""Samples of live processes by short stops.

collector         Samples of live processes by ptrace
deep_stack        Stacks that are longer than what a stop may copy
idle_subsampling  Subsampling of idle threads: which threads a round of samples checks, and with which weight
opening           Opens the collector that samples by short stops
process           One process that is sampled: its threads, its address spaces, its end
sampler           How one thread gets its sample: not at all, from outside, or by a stop
stack_copy        The copy of a thread's stack, and of the memory in which its interpreter's frames are
stack_shape       How much of a thread's stack to copy: learned per thread from what the walks needed
stop              One stop of one thread: SEIZE, INTERRUPT, read registers and stack, DETACH
threads           One thread of a target: its open /proc files and what is known about its sleep
young_threads     Sampling of threads that live too short to have accounts of their own
"""
