"""CPython 3.8 to 3.15: runtime, threads, frames and code objects, read from outside the process.

asyncio_tasks             asyncio tasks that await the running task, read from the target or from rows of the BPF
                          program
bpf_frame_decoder         Decoder of the frames that the BPF program has copied, and the offsets that the program needs
code_objects              Code objects: their names, their line tables, and a cache of those that no stop has to read
debug_offsets             The table of structure offsets (_Py_DebugOffsets) at the start of _PyRuntime (CPython 3.13 and
                          later)
detection                 Detection of CPython in a process, and the search for its runtime, repeated when its modules
                          change
frame_copier              Copying a Python thread's frames while the thread is stopped
frame_reader              The frames of one CPython's threads: copied while a thread is stopped, decoded afterwards,
                          cached
frames_by_evaluator_call  Grouping of copied frames into runs: the frames of one evaluator call, with its marker on the
                          C stack
greenlet_cframes          Suspended greenlets of CPython 3.11, by the CFrames on a C stack or in rows of the BPF program
greenlets                 Suspended greenlets on a thread's C stack, by entry frames (CPython 3.12 and later) or by
                          CFrames
interpreter               CPython as an interpreter
layout                    Offsets of the CPython structures that the profiler reads, by version and build
object_reader             Reads of words, Python objects and local variables in another process. All reads are bounded
process_reader            The CPython of one process: its runtime, threads and frames
runtime_location          The search for CPython's runtime (_PyRuntime) in the modules of a process
runtime_validation        A CPython runtime that was checked against the live process: layout, interpreters, threads
thread_snapshot           The data that one stop copies of a Python thread: frames, chunks of its data stack, and memory
                          that is read ahead
threads                   Thread states of one CPython by the kernel's tid, and the names that Python gave to threads
"""
