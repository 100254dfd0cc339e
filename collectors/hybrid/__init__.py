"""Which thread is sampled by which collector while a recording runs.

bpf_opening      Opens the collector that samples by a program in the kernel
by_image         Which processes are stopped for their samples because of the program that they run
collector        Threads whose stacks the kernel cannot copy
opening          Opens the collector that samples by perf_events, with others beside it where these alone are not enough
stop_candidates  Which threads are stopped for their samples, because the kernel cannot copy their stacks
whole_process    All processes without stops, or all of them by stops
"""
