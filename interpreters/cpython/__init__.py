"""CPython 3.8 to 3.15: runtime, threads, frames and code objects, read from outside the process.

read_plan         Prediction of the memory that the next stop of a thread reads for its frames
awaiting_rows     asyncio tasks that await the running task, as the BPF program copies them
capture           Copying a Python thread's frames while the thread is stopped
codes             Names and line tables of code objects
snapshot          Data that one stop has copied of a Python thread, and the reads it makes
data_stack        The chunks of a thread's data stack, and their copies
debug_offsets     _Py_DebugOffsets, the table in which CPython 3.13 and later describes its layout
finder            Search for the CPython runtime of one process, repeated when its modules change
frame_reader      The frames of one CPython's threads: copied in a stop, decoded afterwards
greenlet_cframes  Search for suspended greenlets on a C stack, CPython 3.11
greenlet_entries  Search for suspended greenlets on a C stack, CPython 3.12 and later
greenlet_rows     Search for suspended greenlets in rows that the BPF program has copied, CPython 3.11
greenlets         Evaluator activations on a thread's C stack that are missing from its frame chain
bpf_reader        One process's CPython whose frames are copied by the BPF program
interpreter       CPython as an interpreters.base.Interpreter
chain_cache       Cache of decoded frame chains by the rows that gave them
code_history      History of the code object at each address
layout            Offsets of the CPython structures that the profiler reads, by version and build
lines             Line of an instruction, from the three formats of line tables
local_values      Local variables of a frame as bounded text, without running code of the target
locate            Search for _PyRuntime in the program or a library, by symbol or section
memory            Reads of the target's memory in words
names             Thread names from the threading module
objects           Python objects in another process: strings, bytes, types, tuples, dicts, integers
process           One process's CPython as an interpreters.base.ProcessReader
programs          Detection of CPython in a process, without its threads or names
rows              Decoder of frame rows that the BPF program has copied
runs              Grouping of copied frames into activations of the evaluator
runtime           A CPython runtime that was checked against the live process: layout, interpreters, threads
code_cache        Code objects that need no read during a stop
tables            Layouts of CPython 3.8 to 3.12 (x86-64, GIL builds), and of objects in all versions
tasks             asyncio tasks that await the running task
threads           Thread states of one CPython by tid, and the names that Python gave them
"""
