"""Frames of interpreters: where a runtime keeps them, how they are read, and where they belong in a native stack.

cpython/  CPython 3.8 to 3.15: its runtime, threads, frames and code objects, read from outside
merge     Where an interpreter's frames belong in a native stack: by address, after unwinding
programs  Does an interpreter run in a process?
"""
