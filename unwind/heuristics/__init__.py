"""Callers of frames without unwind tables, and caches of earlier walks.

call_target_checks          Evidence of whether the call before a return address calls the function of the callee's
                            frame
deep_stack_reuse            A complete walk of a thread, and the checks before a later walk reuses its frames
deep_stacks                 Walks of stacks that are longer than the part that was copied
frame_pointer_recovery      Search for the frame pointer of a blocked thread in its stack copy
frame_pointers              Callers by frame records, for frames that no table covers
rules_and_checks_from_code  Checks of machine code near a pc: return addresses, epilogues, code that overwrites saved
                            registers
stack_scan                  Stack scanning: a word on the stack that may be a return address
"""
