"""libunwind's dynamic unwind-info.

region_interpreter  An interpreter of libunwind's regions and directives, for the rule at one place of a procedure
registered_info     Unwind info that a process has registered by _U_dyn_register, read from its memory
registered_tables   The tables that registered unwind info points to, as rows
registration_list   Search for the list of registered unwind info in a module
"""
