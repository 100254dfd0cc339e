"""CPython 3.8 to 3.15: its runtime, threads, frames and code objects, read from outside.

ahead             What the next stop of a thread reads of its frames, told beforehand
awaiting_rows     Tasks that await the running one (asyncio), as a program in the kernel copies them
capture           What is read of a Python thread while it stands still
codes             Code objects
copied            What one stop has copied of a Python thread, and how memory is asked for while it stands still
data_stack        A thread's data stack: its chunks, copied while it stands still
debug_offsets     _Py_DebugOffsets
finder            The CPython of one process: found when its modules are known, found again where they change
frame_reader      The frames of one CPython's threads: copied while a thread stands still, decoded when it runs again
greenlet_cframes  Activations that wait on a C stack, CPython 3.11
greenlet_entries  Activations that wait on a C stack, CPython 3.12 and later
greenlet_rows     Activations that wait on a C stack, CPython 3.11, in rows that a program in the kernel has copied
greenlets         Activations of the evaluator that wait on a thread's C stack and are not in its chain
in_kernel         One process's CPython, whose frames a program in the kernel copies
interpreter       CPython as an interpreters.base.Interpreter
known_chains      Chains that rows of frames have given before
known_heads       Which code stood at an address
layout            Where CPython keeps what a profiler reads: one value a version and build
lines             Which line an instruction belongs to: the three formats of a code object's table of lines
local_values      Local variables of a frame as text: read only, bounded, never by running code of the target
locate            Where a process has its CPython: _PyRuntime, found by symbol or section in the program or a library
memory            The target's memory in words
names             Names of threads as Python gave them
objects           Python objects in another process: strings, bytes, types, tuples, dicts, integers
process           One process's CPython
programs          Does CPython run in a process? A quick look, without its threads or names
rows              Rows of frames that a program in the kernel has copied, decoded in passes
runs              From a copied chain of frames to runs
runtime           A CPython in a process, believed only after a look at the live process: layout, interpreters, threads
settled_codes     Code objects that need no look while a thread stands still
tables            Layouts of CPython 3.8 to 3.12, x86-64, GIL builds; and of the objects of all versions
tasks             asyncio
threads           The thread states of one CPython by the kernel's tids, and the names that Python gave them
"""
