"""Code that processes generate at run time: how they describe it, and what follows for unwinding and names.

base       The interface of a source of code descriptions
code       Run-time generated code of all processes of a recording: unwind rules and names
hotspot/   The code of Java virtual machines (HotSpot), read from outside
gdb_jit    Code registered with the GDB JIT interface
jitdump    Names, lines and unwind tables from a process's jitdump file, found through its marker mapping
libunwind  Code registered with libunwind: procedures described by directives, and tables
perf_map   Names from a process's perf map, read while it grows
process    All code descriptions of one process
"""
