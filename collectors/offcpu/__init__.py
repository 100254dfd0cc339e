"""Time off the processor: intervals between switches, and the stacks that they are attributed to.

attribution  Whose stack stands for the stretches that have none: those of the same thread, of about the same length
collector    All of a thread's time: on a processor as the kernel samples it, off it by the length of each stretch
gaps         Time of which there are no records
intervals    The stretches in which threads are off their processor
wait_labels  In what a thread waits, told by the sample with which it left its processor
"""
