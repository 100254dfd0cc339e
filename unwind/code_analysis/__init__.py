"""Unwind rules from machine code, for functions without unwind tables.

code_rules        Unwind rules of functions without unwind tables, from the analysis of their code
function_index    Addresses at which functions begin: symbols, unwind tables, the entry point and the code itself
x86_flow          The stack depth at each instruction of one x86-64 function, along all paths from its start
x86_instructions  Effects of x86-64 instructions on the stack pointer and on callee-saved registers
"""
