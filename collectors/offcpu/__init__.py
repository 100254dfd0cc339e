"""Time off the processor: intervals between switches, and the stacks that they are attributed to.

attribution     Whose stack stands for the intervals that have none: those of the same thread, of about the same length
classification  By what each interval gets its stack: a sample, a look from outside, an earlier part of it, or none
collector       All of a thread's time: on a processor as the kernel samples it, off it by the length of each interval
gaps            Time of which there are no records
intervals       The stretches in which threads are off their processor
matching        Off-CPU intervals out of switches, and which sample and which look from outside each of them has
wait_labels     In what a thread waits, told by the sample with which it left its processor
"""
