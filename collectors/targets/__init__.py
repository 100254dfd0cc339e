"""The processes to record, checks whether they can be recorded, and their mappings over time.

address_spaces     The address spaces of one process over time
attach_checks      Checks whether a process can be sampled
command_launch     Start of a command that waits until the profiler is ready; it is not traced while it starts
mapping_changes    Changes of a process's mappings: when they are read again, and the samples near a change
process_selection  The selected processes, and the request for a collector of them
"""
