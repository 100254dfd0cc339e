"""Time off the processor: intervals between switches, and the stacks that they are attributed to.

attribution     Stacks for intervals that have none: those of intervals of the same thread that are about as long
classification  Where each interval gets its stack from: its own sample, an out-of-band sample, an earlier part, or none
collector       Wall-clock time of threads: on a processor by the kernel's samples, off it by intervals
gaps            Time without switch records
intervals       The intervals in which threads are off their processors
matching        Builds intervals from switch records, and finds the samples of each
paused          Threads without switch records for a while: their processor time, and whether they have ended
wait_labels     What a thread waits in, by the sample that was taken when it left its processor
"""
