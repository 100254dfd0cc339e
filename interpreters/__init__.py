"""Interpreter frames: where a runtime keeps them, how they are read, and where they belong in a native stack.

base               The interface between an interpreter and the rest of the profiler
cpython/           CPython 3.8 to 3.15: runtime, threads, frames and code objects, read from outside the process
detection_symbols  Symbols and sections that detect an interpreter in the object files of a process
frame_merge        Placement of interpreter frames in an unwound native stack, by stack address
function_table     The functions of interpreters that a recording has seen
goroutines         Goroutines of a Go program: the one that a thread runs, and those that no thread runs, with their
                   stacks
registry           The list of supported interpreters and of runtimes that are only detected, and objects that combine
                   all of them
ruby_detection     Ruby (CRuby): detected only, its functions are not read
"""
