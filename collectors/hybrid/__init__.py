"""Which thread is sampled by which collector while a recording runs.

bpf_opening        Opens the collector that samples by a program in the kernel
by_image           Which processes are stopped for their samples because of the program that they run
collector          Threads whose stacks the kernel cannot copy
opening            Opens the collector that samples by perf_events, with others beside it where it is not enough
stop_candidates    Which threads are stopped for their samples, because the kernel cannot copy their stacks
stops              Opens the collector that stops the threads and processes that one without stops cannot sample
until_interpreter  One collector until a process runs an interpreter, another one from then on
whole_process      All processes without stops, or all of them by stops
"""
