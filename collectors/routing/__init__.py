"""The router of a recording, which samples each thread by the source that the plan names.

by_image         The processes that are stopped for samples because of the program that they run
closed_sources   The totals of sources that were closed before the end of the recording
missed_time      The check whether stops miss too much because threads or processes end too soon
opening          The functions that open the sources that the plan of a recording names
partial_stops    The source that stops some threads, opened and closed as they are chosen and released
planner          The facts of a recording, and its plan, which is made again when one of them changes
router           The collector of a recording: a main source, stops of some threads, and changes of the main source
stop_candidates  The threads that are stopped for samples because the kernel cannot copy their stacks
"""
