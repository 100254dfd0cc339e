"""Machine code for what Python does too slowly: rounds of ptrace stops that take samples.

rounds.c is the source, with stop.h for one stop, frames.h for reading interpreter frames, and calls.h for
system calls. `build` compiles them to rounds.MACHINE.so. The result needs no library, and users need no
compiler. If there is no such file for the machine, or the system forbids loading it, collectors/ptrace does
the same in Python.

sampling_loop_bindings  The loaded code, and the structures that are passed to it
"""
