"""Which processes are recorded, whether that will work, and what is mapped in them over time.

attach     Whether a process can be sampled
launch     Start a command that waits until the profiler is ready, and nothing else: it is not traced while it starts
request    What is asked of a collector: which processes, how, and what it shares with others of the same recording
selection  Which processes are recorded: named by pid, or all that fit, those to come included
spaces     The address spaces of one process over time: which modules were mapped when a sample was taken
"""
