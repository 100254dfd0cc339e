"""The core of the library: recordings, from the collector's samples to named profiles.

core_and_crash_dump_profile  Profiles of core files, minidumps and microdumps
flight_recorder              A flight recorder: a recording of which only the last minutes are kept, and its triggers
goroutine_stacks             The stacks of goroutines that no thread runs, for a dump
own_cpu_and_memory           Processor time and memory of this process, and the return of free heap memory
pipeline/                    The way of samples from batches to a profile: unwind, merge, intern, repair, name
process_priority             The priorities of the sampler and the worker, by what the user waits for
recording                    A running recording: collector, files and loop, and its interface for other threads
recording_factory            Makes a Recording from a target and options
session                      One observed target: collector, images, unwinder and recorder
shutdown_watchdog            Limits how long the sampler may take to end
sink_delivery                Delivery of a recording's profiles to a Sink
thread_dump                  The current stacks of all threads of a process, or of a target behind a GDB stub
worker/                      The process boundary: the sampler on one side, the worker that parses files on the other
"""
