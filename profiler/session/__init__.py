"""The core of the library: recordings, from the collector's samples to named profiles.

worker/                 The process boundary: the sampler on one side, the worker that parses files on the other
assemble                Assembly of a Profile from a closed window: names and values
between_batches         Calls from other threads that a recording's loop executes between two batches
chain_merger            Merges interpreter frames into native stacks, one stack at a time
sink_delivery           Delivery of a recording's profiles to a Sink
evaluator_resume        Continues an unwound stack at an evaluator frame of the interpreter
flight                  A flight recorder: a recording of which only the last minutes are kept
pending_samples         Samples of sleeping threads whose unwinding needs a register
inlined                 Places inlined functions inside the interpreter frames that their frame runs
interning               Interning of a batch as nodes of the stack tree
journal_writer          Writes the current window to the journal of its sink
final_stacks            The last stack of each thread
matched_stacks          Merges interpreter frames with native stacks for many samples at once
background_symbolizer   Background symbolization of the current window
native_views            Views: which native frames are shown in stacks that have interpreter frames
opening                 Makes a Recording from a target and options
shutdown_watchdog       Limits how long the sampler may take to end
own_cost                Processor time and memory of this process
post_mortem             Profiles of core files, minidumps and microdumps
recorder                Turns batches into rows and windows
recording               A running recording: collector, files and loop, and its interface for other threads
python_command          Detects commands that are likely to start a Python interpreter
rows                    Rows of a recording: the facts that are kept of each sample
runtimes                The interpreters of a recording's processes
session                 One observed target: collector, images, unwinder and recorder
snapshot                The current stacks of all threads of a process, or of a target behind a GDB stub
summarize               Statistics of a window
wait_context            Adds the waker's stack inside a wait, or the lock outside it
thread_numbers          Numbers of a recording's threads
triggers                Conditions under which a flight recorder saves its windows
truncated_stack_repair  Completes truncated stacks from a later complete stack of the same thread
unfollowed_children     Processor time of children that a recording does not follow
unsampled_time          Processor time without samples
dump_completion         A collector that ends when the stack of each thread is complete
views                   Selects the frames and samples of a recording that are shown
"""
