"""Off-CPU time: intervals between context switches, and the stacks that they are attributed to.

interval_attribution  The stack that each off-CPU interval is attributed to
interval_matching     Construction of off-CPU intervals from switch records, and the time that lacks such records
lost_running_time     The running time of threads whose samples were lost
wall_clock_collector  A collector of wall-clock time: on-CPU samples, and off-CPU intervals with the label of their wait
"""
