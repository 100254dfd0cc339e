"""The processes to record, checks whether they can be recorded, and their mappings over time.

address_spaces            The address spaces of one process over time
attach_checks             Checks whether a process can be sampled
collector_request         The request for a collector: the processes, the options
launch                    Start of a command that waits until the profiler is ready; it is not traced while it starts
map_changes               A check whether mappings have changed, by queries for single ones (linux/map_query.py)
maps_text                 The latest contents of /proc/PID/maps: the executable mappings, and the writable memory
samples_near_map_changes  Samples near a change of the mappings: the next reading decides which state they belong to
selection                 The selected processes: named by pid, or all that match, including those that start later
"""
