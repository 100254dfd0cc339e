"""Samples from the kernel's perf_events.

attr            struct perf_event_attr as bytes, and what the kernel says when it refuses one (perf_event_open(2))
batches         What a look into the rings found, as batches of samples
collector       Samples from the kernel's perf_events: no thread is ever stopped
copy_size       How much of each stack the kernel is asked to copy
event_manager   The events of a recording: what they stand on, how much they copy, how long they have counted
event_set       Events on threads: one for each thread and processor, whose samples go to that processor's ring
members         Which processes belong to a recording: those that were named, those that fit later, and their children
news            Births, execs and newly mapped files of a recording's processes
processes       The processes of a recording as the kernel reports them
reader          Looks into the rings: what is in them up to a time, in order of time
records         Records in the rings, in bulk: samples as columns over the ring's own words, all others one by one
ring            The kernel's ring buffers, one a processor, side by side in one stretch of our memory
scope           What the events stand on: on each processor, whatever runs there, or on the threads of the recording
spaces          Address spaces by the kernel's own account
switch_periods  At which of its leaves a thread is sampled
switch_records  Records of switches in the rings, in bulk: runs of them are columns, whatever their length
switch_source   perf_events as a source of switches: samples of threads that run, and when each leaves its processor
switches        When threads leave their processors and come back, and the stacks with which they left
ticks           How often the kernel really took samples
waiter          Waits for processes to end, or to be woken; and how long samples may wait in the rings
"""
