"""Unwind rules from machine code, for functions without unwind tables.

code_rules          Unwind rules of functions without unwind tables, from the analysis of their code
frame_state         The places of the CFA and of the caller's registers before an instruction, and how instructions
                    change them
function_bounds     The code around a function: its bytes, padding, calls, and possible ends of functions
function_index      Addresses at which functions begin: symbols, unwind tables, the entry point and the code itself
function_states     The states of one function's instructions: the place of the CFA before each, and the next
                    instructions
native_flow         The binding of the native analysis of functions
states_after_calls  Proofs of the states of code behind calls
x86_flow            The places of the CFA and of saved registers at each instruction of one function, along all paths
x86_instructions    The decoder of x86-64 instructions, and the registers that they write
"""
