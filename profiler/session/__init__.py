"""The core of the library: recordings, from the collector's samples to named profiles.

background_symbolizer    Background symbolization of the current window
cross_thread_calls       Calls from other threads that a recording's loop executes between two batches
flight_recorder          A flight recorder: a recording of which only the last minutes are kept
inlined_functions        Places inlined functions inside the interpreter frames that their frame runs
interpreter_merge        Merges interpreter frames into native stacks, one stack at a time
interpreter_merge_batch  Merges interpreter frames with native stacks for many samples at once
interpreter_readers      The interpreters of a recording's processes
journal_writer           Writes the current window to the journal of its sink
native_frame_views       Views: which native frames are shown in stacks that have interpreter frames
own_cost                 Processor time and memory of this process
post_mortem              Profiles of core files, minidumps and microdumps
profile_assembly         Assembly of a Profile from a closed window: names and values
recording                A running recording: collector, files and loop, and its interface for other threads
recording_factory        Makes a Recording from a target and options
resume_at_evaluator      Continues an unwound stack at an evaluator frame of the interpreter
sample_rows              Rows of a recording: the facts that are kept of each sample, and their later changes
sample_windows           Turns batches into rows and windows
session                  One observed target: collector, images, unwinder and recorder
shown_frames             Selects the frames and samples of a recording that are shown
shutdown_watchdog        Limits how long the sampler may take to end
sink_delivery            Delivery of a recording's profiles to a Sink
stack_interning          Interning of a batch as nodes of the stack tree
thread_dump              The current stacks of all threads of a process, or of a target behind a GDB stub
thread_tables            Numbers of a recording's threads, and the last stack of each
triggers                 Conditions under which a flight recorder saves its windows
truncated_stack_repair   Completes truncated stacks from a later complete stack of the same thread
unfollowed_cpu_time      Processor time of children that a recording does not follow
unsampled_time           Processor time without samples
until_complete_stacks    A collector that ends when the stack of each thread is complete
window_summary           Statistics of a window
worker/                  The process boundary: the sampler on one side, the worker that parses files on the other
"""
