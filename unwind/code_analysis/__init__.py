"""Unwind rules from machine code, for functions without unwind tables.

aarch64_code_rules          Unwind rules of AArch64 functions without unwind tables, from the analysis of their code
aarch64_control_flow        The frame states of the instructions of one AArch64 function, along all paths
aarch64_frame_state         The state of an AArch64 frame before an instruction, and how each instruction changes it
analysed_code               The unwind rows that the analysis of a file's code has found, in pieces of consecutive
                            code
cfa_and_register_state      The places of the CFA and of the caller's registers before an instruction, and how
                            instructions change them
code_rules                  Unwind rules of x86-64 functions without unwind tables, from the analysis of their code
function_analysis_bindings  The binding of the native analysis of x86-64 functions
function_index              Addresses at which functions begin: symbols, unwind tables, the entry point and the code
                            itself
instruction_states          The code of an x86-64 function, and the states of its instructions: the place of the CFA
                            before each
proved_instructions         The proof of stack depths: which instructions of an analysed function have a known stack
                            pointer or frame pointer
x86_control_flow            The places of the CFA and of saved registers at each instruction of one x86-64 function,
                            along all paths
x86_instruction_decoder     The decoder of x86-64 instructions, and the registers that they write
"""
