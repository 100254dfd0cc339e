"""The loop that ties collector, unwinder, stacks, names and exporters together. Only the command line imports it.

assemble                From a closed window to a Profile: look names up, make values
background              Write a closed window while sampling goes on
evaluator_resume        Walks that go on beyond what cannot be unwound
inlined                 Functions inlined into a frame that runs an interpreter's frames
recorder                The recording half of a session
rows                    Rows of a recording: what is kept of each sample once its stack is a node of a tree
runtimes                The interpreters of a recording's processes
session                 One target under observation: collector, images, unwinder and recorder, tied together
summarize               What a window of a recording did, as numbers
truncated_stack_repair  Stacks that were cut where their copy ends
unfollowed              Processor time of children that a recording does not follow, by the kernel's accounts
unseen                  Processor time that no sample stands for
views                   What of a recording is shown
"""
