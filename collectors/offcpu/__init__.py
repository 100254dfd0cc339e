"""Off-CPU time: intervals between context switches, and the stacks that they are attributed to.

attribution        Stacks for intervals that have none: those of intervals of the same thread with a similar length
classification     The source of each interval's stack: its own sample, an out-of-band sample, an earlier part, or none
collector          A collector of wall-clock time: on-CPU time by the kernel's samples, off-CPU time by intervals
gaps               Time without switch records, of all threads or of paused ones
interval_matching  Construction of intervals from switch records, and their samples
intervals          The intervals in which threads are off their processors
wait_labels        The wait of a thread, from the sample that was taken when it left its processor
"""
