"""Samples by a program in the kernel (BPF).

sampler.bpf.c is the program, awaiters.h a part of it, sampler.h what it shares with its reader, sampler.MACHINE.o what
`build` makes of them.

abi           What sampler.h states, as columns
collector     Samples by a program in the kernel: registers, stack and the interpreter's frames of one instant
kernel_types  Where the running kernel has a field of a structure, by its own type information
locks         Waits for locks: which lock it is, and how long until it was had
object        A compiled BPF object made ready for the kernel: its maps, its type information, its programs
records       Records of the ring as columns
ring          The ring in which programs leave their records, read without a copy
run_times     How much time samples of running threads stand for, by the kernel's account of their turns
sampler       The program in the kernel, its maps and the events at which it runs, as one thing
source        Samples by the program in the kernel, for the collector that knows the processes
surroundings  What stands around the stacks of waits: the lock outside each, and inside it who ended it
wait_collector  Wall-clock time of threads by a program in the kernel, waits with their stacks
wait_rates    Which waits are recorded one by one: as many as can be unwound, shorter ones where it is quiet
waits         Waits as the kernel reports them: how much time each stack stands for, and what time has none
wakers        Who ended a wait, as the kernel reports it, and what that says of the wait
"""
