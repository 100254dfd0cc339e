"""Samples from the kernel's perf_events.

address_spaces          Address spaces from the kernel's records: /proc/PID/maps once, then each new mapping at its time
batch_maker             Conversion of records in the rings to sample batches
cpu_wide_events         Events on processors: samples of all their threads, an alarm for new mappings, and the choice
                        between processors and threads
event_attributes        struct perf_event_attr as bytes, reasons for refusals, and the periods of context-switch events
event_manager           The events of a recording: their scope, their copy size, and the time that they have counted
event_set               Events on threads, one for each thread and processor, and a reader of the rings
kernel_collector        A collector of samples that the kernel takes, its records about the recorded processes, and
                        perf_events' samples
process_set             The processes of a recording, and their processor time
processes_from_records  The processes of a recording as the kernel's records report them: forks, execs, mappings and
                        thread names
random_sampling         Chance in sampling by perf_events: random rates of events, and a random choice among records
records                 The kernel's ring buffers, one for each processor, and their records in bulk
stack_copy_size         The number of stack bytes that the kernel copies, and page-in of pages at which its copies end
switch_source           A source of context switches: samples of running threads, and switch times
switches                Context switches of threads by perf_events: their records in bulk, stacks at the switch, and a
                        duty cycle
time_after_last_record  Estimates of the user time that threads spent after their last record
waiter                  Waits for the end of processes or a wakeup, and the time that samples may wait in the rings
"""
