"""The way of samples from batches to a profile: unwind, merge interpreter frames, intern, repair, name.

background_symbolizer          Background symbolization of the current window
batch_to_stacks                Interning of a batch as nodes of the stack tree: unwind, merge interpreter frames, intern
continue_stack_at_interpreter  Continues an unwound stack at an evaluator frame of the interpreter
interpreter_merge              Merges interpreter frames into native stacks, for many samples at once or one by one
interpreter_readers            The interpreters of a recording's processes
journal_writer                 Writes the current window to the journal of its sink
native_frame_views             Selects the frames and samples of a recording that are shown, by views of native frames
profile_assembly               Assembly of a Profile from a closed window: names, values and statistics
sample_windows                 Turns batches into rows and windows
truncated_stack_repair         Completes truncated stacks from a later complete stack of the same thread
unsampled_time                 Processor time without samples
window_row_store               Rows of a recording: the facts that are kept of each sample once its stack is a node of
                               the tree, and its threads
"""
