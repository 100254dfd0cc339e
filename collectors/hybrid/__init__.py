"""Which thread is sampled by which collector while a recording runs.

bpf_opening        Opens the collector that samples by a program in the kernel
by_image           Which processes are stopped for their samples because of the program that they run
collector          Threads whose stacks the kernel cannot copy
opening            Opens the collector that samples by perf_events, with others beside it where it is not enough
stop_candidates    Which threads are stopped for their samples, because the kernel cannot copy their stacks
stops              Opens the collector that stops the threads and processes that one without stops cannot sample
stops_opening      Opens the collector that samples by short stops
succession         One collector, and at some moment of the recording another one in its place
until_program      perf_events until the program in the kernel (BPF) is needed, that from then on
until_short_lives  Stops until they miss much because threads or processes end too soon
whole_process      All processes without stops, or all of them by stops
without_program    A collector in the place of the program in the kernel (BPF), where that could not be had
"""
