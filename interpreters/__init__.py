"""Frames of interpreters: where a runtime keeps them, how they are read, and where they belong in a native stack.

cpython/    CPython 3.8 to 3.15: its runtime, threads, frames and code objects, read from outside
ruby/       Ruby (CRuby): recognised, its functions are not read
base        What an interpreter is to the rest of the profiler, and what one is that is only recognised
code_book   The functions of interpreters that a recording has seen
merge       Where an interpreter's frames belong in a native stack: by address, after unwinding
recognised  Runtimes that are recognised by the name of their program, as data
registry    The interpreters that are known: one line each
symbols     What the object files of a process say of an interpreter: symbols by their names, and one section
"""
