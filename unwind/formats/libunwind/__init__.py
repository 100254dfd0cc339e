"""libunwind's dynamic unwind-info.

dynamic  Unwind info that a process has registered by _U_dyn_register, read from its memory
locate   Search for the list of registered unwind info in a module
regions  An interpreter of libunwind's regions and directives, for the rule at one place of a procedure
tables   The tables that registered unwind info points to, as rows
"""
