"""CPython 3.8 to 3.15: runtime, threads, frames and code objects, read from outside the process.

asyncio_tasks         asyncio tasks that await the running task
bpf_awaiting_tasks    asyncio tasks that await the running task, as the BPF program copies them
bpf_frame_rows        Decoder of frame rows that the BPF program has copied
bpf_greenlet_rows     Search for suspended greenlets in rows that the BPF program has copied, CPython 3.11
bpf_reader            One process's CPython whose frames are copied by the BPF program
code_objects          Names and line tables of code objects
data_stack            The chunks of a thread's data stack, and their copies
debug_offsets         _Py_DebugOffsets, the table in which CPython 3.13 and later describes its layout
decoded_frame_cache   Cache of decoded frame chains by the rows that gave them
detection             Detection of CPython in a process, without its threads or names
evaluator_runs        Grouping of copied frames into activations of the evaluator
frame_copier          Copying a Python thread's frames while the thread is stopped
frame_reader          The frames of one CPython's threads: copied in a stop, decoded afterwards
greenlet_cframes      Search for suspended greenlets on a C stack, CPython 3.11
greenlet_entries      Search for suspended greenlets on a C stack, CPython 3.12 and later
greenlets             Evaluator calls on a thread's C stack that are missing from its frame chain
interpreter           CPython as an interpreters.base.Interpreter
layout                Offsets of the CPython structures that the profiler reads, by version and build
layout_tables         Layouts of CPython 3.8 to 3.12 (x86-64, GIL builds), and of objects in all versions
line_table            Line of an instruction, from the three formats of line tables
local_values          Local variables of a frame as bounded text, without running code of the target
memory                Reads of the target's memory in words
objects               Python objects in another process: strings, bytes, types, tuples, dicts, integers
process               One process's CPython as an interpreters.base.ProcessReader
read_plan             Prediction of the memory that the next stop of a thread reads for its frames
runtime_address       Search for _PyRuntime in the program or a library, by symbol or section
runtime_finder        Search for the CPython runtime of one process, repeated when its modules change
runtime_state         A CPython runtime that was checked against the live process: layout, interpreters, threads
settled_code_objects  Code objects that need no read during a stop
stop_snapshot         Data that one stop has copied of a Python thread, and the reads it makes
thread_names          Thread names from the threading module
threads               Thread states of one CPython by tid, and the names that Python gave them
"""
