"""Which processes are recorded, whether that will work, and what is mapped in them over time.

attach       Whether a process can be sampled
launch       Start a command that waits until the profiler is ready, and nothing else: it is not traced while it starts
map_changes  Have the mappings changed? What the kernel answers to questions about single ones (linux/map_query.py)
maps_text    What /proc/PID/maps of a process said last: which executable mappings, and which writable memory there is
request      What is asked of a collector: which processes, how, and what it shares with others of the same recording
selection    Which processes are recorded: named by pid, or all that fit, those to come included
spaces       The address spaces of one process over time: which modules were mapped when a sample was taken
unsettled    Samples at a change of the mappings: they belong to what was or to what is, known when those are read again
"""
