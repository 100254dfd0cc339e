"""The loop that ties collector, unwinder, stacks, names and exporters together; what the library is made of.

worker/                 The process boundary: the sampler on one side, what parses foreign data on the other
assemble                From a closed window to a Profile: look names up, make values
between_batches         What other threads ask of a recording's loop
chain_merger            The frames of an interpreter, put into the walks of a batch one by one
deliveries              Profiles of a recording that go to a Sink
evaluator_resume        Walks that go on beyond what cannot be unwound
flight                  A flight recorder: of a recording that goes on for days only the last minutes are kept
held_samples            Samples of sleeping threads whose stacks need a register
inlined                 Functions inlined into a frame that runs an interpreter's frames
interning               From a batch to nodes of the tree of stacks
keeping                 What a window under way has so far, for the journal of its sink
last_stacks             The last stack of each thread
matched_stacks          Stacks whose native and interpreter's frames all match, joined in passes over a batch
names_ahead             Names of the window under way, looked up while nothing else is to be done
native_views            Which native frames stand in stacks that have an interpreter's frames, by name of the view
opening                 From a target and options to a Recording that has not begun
overdue                 When a loop that was told to end is left where it is
own_cost                What this process of pyprof has cost so far
post_mortem             What a core file, a minidump or a microdump says of a process that has died
recorder                The recording half of a session
recording               A recording under way: collector, files and loop, and what may be asked of it meanwhile
rehearsal               Does a command look like one that begins an interpreter of the kind that runs us?
rows                    Rows of a recording: what is kept of each sample once its stack is a node of a tree
runtimes                The interpreters of a recording's processes
session                 One target under observation: collector, images, unwinder and recorder, tied together
snapshot                The stacks of all threads of a live process, or of what runs behind a GDB stub, now
summarize               What a window of a recording did, as numbers
surrounded_stacks       Stacks that stand around others: the waker's inside a wait's, the lock outside it
thread_numbers          Numbers of a recording's threads
triggers                Conditions under which a flight recorder writes out what it has
truncated_stack_repair  Stacks that were cut where their copy ends
unfollowed              Processor time of children that a recording does not follow, by the kernel's accounts
unseen                  Processor time that no sample stands for
until_whole             A collector that ends once the stack of each thread is whole
views                   What of a recording is shown
"""
