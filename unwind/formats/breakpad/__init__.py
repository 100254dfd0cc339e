"""STACK CFI and STACK WIN records of Breakpad symbol files.

postfix    Breakpad's postfix expressions: an evaluator for STACK WIN, and a compiler of STACK CFI to rules
stack_cfi  STACK CFI records of a Breakpad symbol file: an unwind source, and a writer
stack_win  STACK WIN records of a Breakpad symbol file: the callers of frames of 32-bit Windows code
"""
