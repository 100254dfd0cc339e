"""libunwind's dynamic unwind-info.

dynamic  libunwind's dynamic unwind-info: what a process has registered by _U_dyn_register, read from its memory
locate   Where a module keeps libunwind's list of dynamic unwind-info
regions  libunwind's regions and directives, executed: the rule at one place of a procedure
tables   The tables that libunwind's dynamic unwind-info points to, as rows; addresses are avma
"""
