"""ARM exception index tables.

code     What ARM instructions do to the stack pointer: as much as prologues and epilogues of compilers need
index    .ARM.exidx and .ARM.extab: which code an entry covers, and its instruction bytes
memory   An .ARM.exidx that stands in the target's memory, with its .ARM.extab and code there too; addresses are avma
opcodes  Frame unwinding instructions of the ARM EHABI: bytes in, Opcodes out
roots    Code that has no caller though its table only says "cannot unwind": where a process and its threads begin
rows     Rows of a function within its prologue and epilogues, which EXIDX says nothing of
rules    What the instructions of one EXIDX entry do to a frame, as a Rule
section  ARM's exception index as a source of rules
"""
