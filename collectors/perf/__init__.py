"""Samples from the kernel's perf_events.

address_spaces          Address spaces from the kernel's records: /proc/PID/maps once, then each new mapping at its time
context_switch_source   A source of context switches: samples of running threads, and switch times
context_switches        Context switches of threads by perf_events: their records in bulk, stacks at the switch, and a
                        duty cycle
cpu_wide_events         Events on processors: samples of all their threads, an alarm for new mappings, and the choice
                        between processors and threads
event_attributes        struct perf_event_attr as bytes, reasons for refusals, and the periods of context-switch events
event_manager           The events of a recording: their scope, their copy size, and the time that they have counted
kernel_collector        A collector of samples that the kernel takes, its records about the recorded processes, and
                        perf_events' samples
per_thread_events       Events on threads, one for each thread and processor, and a reader of the rings
process_set             The processes of a recording, and their processor time
processes_from_records  The processes of a recording as the kernel's records report them: forks, execs, mappings and
                        thread names
random_sampling         Chance in sampling by perf_events: random rates of events, and a random choice among records
records_to_batches      Conversion of records in the rings to sample batches
ring_buffer_polling     Waits for the end of processes or a wakeup, and the time that samples may wait in the rings
ring_buffer_records     The kernel's ring buffers, one for each processor, and their records in bulk
stack_copy_size         The number of stack bytes that the kernel copies, and page-in of pages at which its copies end
time_after_last_record  Estimates of the user time that threads spent after their last record
"""
