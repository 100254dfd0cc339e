"""Callers that no table names, and walks that are remembered.

cached_frames           Frames of one lane as columns: the part of a walk that was known before
calls                   Does the call before a return address call the function of the frame that returns there?
deep_stacks             Stacks that are longer than what is copied of them
epilogue                The rule of a frame whose code has no table
frame_pointer_recovery  The frame pointer of a thread that was read from outside while it slept, found in its stack copy
frame_pointers          The caller of a frame that no table covers
frame_records           Frame records followed for many lanes at once
frame_room              Where a function's code says that its frame pointer is, seen from sp
scan                    The last resort: a word on the stack that may be a return address
stack_cache             The outer part of a deep stack, walked once
stack_win               Frames of 32-bit Windows code, by the STACK WIN records of its symbol file
"""
