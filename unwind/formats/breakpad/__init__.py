"""STACK CFI and STACK WIN records of Breakpad symbol files.

postfix         Breakpad's postfix expressions: tokens, and an evaluator for the programs of STACK WIN
postfix_rules   Postfix expressions of STACK CFI as rules
stack_cfi       STACK CFI records of a Breakpad symbol file as rows
stack_cfi_text  Rows as STACK CFI records, where postfix can say them
stack_win       STACK WIN records of a Breakpad symbol file: the caller of one frame of 32-bit x86 Windows code
"""
