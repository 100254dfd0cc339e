"""ARM exception index tables.

arm_instructions  A decoder of the ARM instructions by which compilers' prologues and epilogues change the stack pointer
index             .ARM.exidx and .ARM.extab: the code that an entry covers, and its unwinding instructions
opcodes           A decoder of the frame unwinding instructions of the ARM EHABI
prologue_rows     Rows inside a function's prologue and epilogues, which EXIDX does not describe
rules             A compiler from the instructions of one EXIDX entry to a Rule
section           The ARM exception index as an unwind source
"""
