"""Samples from the kernel's perf_events.

address_spaces          Address spaces from the kernel's records
attr                    struct perf_event_attr as bytes, and the reasons for which the kernel refuses one
batch_maker             Conversion of records in the rings to sample batches
collector               A collector that uses the kernel's perf_events: no thread is ever stopped
copy_size               The number of stack bytes that the kernel copies, and page-in of pages at which its copies end
cpu_events              One event on each processor, which is replaced after the processor was offline
duty_cycle              Duty cycle of threads that switch too often: their events are on for a part of the time only
event_manager           The events of a recording: their scope, their copy size, and the time that they have counted
event_scope             The scope of events: each processor with all its threads, or the threads of the recording
event_set               Events on threads, one for each thread and processor, and a reader of the rings
mapping_alarm           Events on all processors that wake the collector when a process of the machine maps code
pending_mappings        Changes of a process's mappings that are not applied yet: new mappings, execs
process_events          Forks, execs and new file mappings of a recording's processes
process_set             The processes of a recording: the selected ones, those that match later, and their children
random_rates            Random rates of events, so that no program runs in step with its samples
record_thinning         Events on threads that live shorter than a period: more records are made than samples are used
records                 Records in the rings, in bulk: samples as columns over the ring's own words; others one by one
ring                    The kernel's ring buffers, one for each processor, adjacent in one range of memory
switch_periods          The number of context switches between two samples of a thread
switch_records          Records of switches in the rings, in bulk: runs of them become columns, whatever their length
switch_source           A source of context switches: samples of running threads, and switch times
switches                Context switches of threads, and their stacks when they left their processor
thread_names            The latest names of threads, and the files that the compilers of a recording work on
time_after_last_record  Estimates of the user time that threads spent after their last record
tracked_processes       The processes of a recording as the kernel reports them
waiter                  Waits for the end of processes or a wakeup, and the time that samples may wait in the rings
"""
