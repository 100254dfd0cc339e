"""Code that processes make at run time: who registered it, and what that says of rules and names.

base       What a way of describing code is, and what all of them are given
code       Code made at run time, of all processes of a recording: rules for the walk, names for the profile
gdb_jit    Code registered with the GDB JIT interface
jitdump    Names, lines and unwind tables from the jitdump of one process, found through the mapping that announces it
libunwind  Code registered with libunwind's dynamic unwind-info: procedures described by directives, and tables
perf_map   Names from the perf map of one process, read as it grows
process    Everything that one process says about the code that it makes
"""
