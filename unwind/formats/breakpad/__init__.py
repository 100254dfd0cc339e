"""STACK CFI and STACK WIN records of Breakpad symbol files.

postfix               Breakpad's postfix expressions: tokens, and an evaluator for the programs of STACK WIN
postfix_rules         A compiler from postfix expressions of STACK CFI to rules
stack_cfi             STACK CFI records of a Breakpad symbol file as an unwind source
stack_cfi_text        A writer of rows as STACK CFI records
stack_win_evaluation  The caller of a frame of 32-bit x86 Windows code, by a STACK WIN record
"""
