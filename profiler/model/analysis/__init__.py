"""Functions on profiles: filters, merges, call trees, costs, idle waits, quality.

call_tree               A profile as a tree of function calls
compiler_command_lines  Finds the file that a compiler works on, in its command line
confidence_interval     The confidence interval of a function's share, by the number of samples behind it
data_frame              A profile as a table with one row for each sample, for any library of data frames
function_costs          The functions of a profile and their costs, and which functions are application code
idle_waits              Waits of idle threads: pools that wait for work, event loops, processes that supervise others
line_costs              Costs of each source line and each code address of a profile, and a source file as it was read
merge                   Merges profiles of several processes or machines, or parts of one recording
sample_filter           Selects a part of a profile's samples
stack_quality           Totals over the samples of a profile: how stacks ended, how frames were found, in which modules
"""
