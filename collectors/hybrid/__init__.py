"""The choice of a collector for each thread while a recording runs.

by_image           The processes that are stopped for samples because of the program that they run
collector          A collector for threads whose stacks the kernel cannot copy, and for all others
opening            The functions that open the sources that the plan of a recording names
planner            The facts of a recording, and its plan, which is made again when one of them changes
stop_candidates    The threads that are stopped for samples because the kernel cannot copy their stacks
succession         A collector that another one replaces during the recording, and the totals of closed collectors
until_program      perf_events until the program in the kernel (BPF) is needed, and that program from then on
until_short_lives  Stops until they miss too much because threads or processes end too soon
whole_process      All processes without stops, or all of them by stops
"""
