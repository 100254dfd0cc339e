"""Callers for frames without tables, and walks that are kept.

cached_frames           Frames of one lane as columns: the part of a walk that was known before
calls                   Does the call before a return address call the function of the frame that returns there?
deep_stacks             Stacks that are longer than the part that was copied
epilogue                Rules for code without tables, from the instructions between its pc and its return
frame_pointer_recovery  The frame pointer of a thread that was read from outside while it slept, found in its stack copy
frame_pointers          Callers by frame records, for frames that no table covers
frame_records           Frame records followed for many lanes at once
frame_room              The distance of the frame pointer from sp, from a function's code
known_chain             A whole chain that is known of a thread, and what must be seen for a walk to join it
replaced_frames         Code that replaces the registers of its frame by those of another frame
scan                    Stack scanning: a word on the stack that may be a return address
stack_cache             The outer part of a deep stack is walked once per thread
stack_win               Frames of 32-bit Windows code, by the STACK WIN records of its symbol file
"""
