"""The combined collector of a recording, which samples each thread by the source that the recording's plan
names.

open_sources                The sources of a recording that are open now: its main source, and stops of single threads
                            and processes
planner                     The facts of a recording, and its plan, which is made again when one of them changes
source_switching_collector  A collector that opens the source which the plan names, and changes the source when the plan
                            changes
threads_to_stop             The threads and processes that are stopped for samples: the kernel cannot copy their stacks,
                            or their program needs it
"""
