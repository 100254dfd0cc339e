"""What has to be quicker than Python: rounds of samples by stops, as machine code.

rounds.c is the source, stop.h one stop, frames.h what is read of an interpreter's frames, calls.h the system calls;
rounds.MACHINE.so is what `build` makes of them: no library is needed to load it, and no compiler by who uses it. Where
there is none for the machine, or the system forbids to load it, collectors/ptrace does the same in Python.

code  The code, loaded, and the structures by which it is asked
"""
