"""Off-CPU time: intervals between context switches, and the stacks that they are attributed to.

borrowed_stacks       Stacks for intervals that have none
collector             A collector of wall-clock time: on-CPU time by the kernel's samples, off-CPU time by intervals
interval_attribution  The intervals in which threads are off their processors
interval_matching     Construction of intervals from switch records, and their samples
stack_sources         The source of each interval's stack: its own sample, an out-of-band sample, an earlier part
switch_record_gaps    Time without switch records, of all threads or of paused ones
wait_labels           The wait of a thread, from the sample that was taken when it left its processor
"""
