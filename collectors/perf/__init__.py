"""Samples from the kernel's perf_events.

absent_pages    Pages of a stack that the thread has never written: the kernel's copy ends at the first of them
attr            struct perf_event_attr as bytes, and what the kernel says when it refuses one (perf_event_open(2))
batches         Records that were read from the rings, as sample batches
changes         What a process's history waits to take in: new mappings, execs, and maps as they were found
collector       Samples from the kernel's perf_events: no thread is ever stopped
copy_size       How much of each stack the kernel is asked to copy
cpu_events      One event on each processor, and another one in its place where the processor was offline
duty_cycle      Duty cycle of threads that switch too often: their events are on for a part of the time only
event_manager   The events of a recording: what they stand on, how much they copy, how long they have counted
event_set       Events on threads: one for each thread and processor, whose samples go to that processor's ring
last_records    What threads ran in user space after their last record
members         Which processes belong to a recording: those that were named, those that match later, and their children
news            Forks, execs and new file mappings of a recording's processes
processes       The processes of a recording as the kernel reports them
random_rates    Random rates of events, so that no program runs in step with its samples
reader          Reads the rings: their records up to a time, in order of time
records         Records in the rings, in bulk: samples as columns over the ring's own words, all others one by one
ring            The kernel's ring buffers, one a processor, side by side in one range of memory
scope           What the events stand on: on each processor, whatever runs there, or on the threads of the recording
short_lives     Events on threads that live shorter than a period: more records are made than samples are wanted
spaces          Address spaces from the kernel's records
switch_periods  At which of its switches a thread is sampled
switch_records  Records of switches in the rings, in bulk: runs of them are columns, whatever their length
switch_source   perf_events as a source of switches: samples of threads that run, and when each leaves its processor
switches        Context switches of threads, and their stacks when they left their processor
thread_names    Names of threads by the kernel's records, each as it was last
waiter          Waits for processes to end, or to be woken; and how long samples may wait in the rings
"""
