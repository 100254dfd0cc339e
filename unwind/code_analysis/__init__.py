"""Unwind rules from machine code, for functions without unwind tables.

code_rules        Unwind rules of functions without unwind tables, from the analysis of their code
frame_state       The places of the CFA and of the caller's registers before an instruction, and how instructions change
                  them
function_index    Addresses at which functions begin: symbols, unwind tables, the entry point and the code itself
function_states   The code of a function, and the states of its instructions: the place of the CFA before each
native_flow       The binding of the native analysis of functions
x86_flow          The places of the CFA and of saved registers at each instruction of one function, along all paths
x86_instructions  The decoder of x86-64 instructions, and the registers that they write
"""
