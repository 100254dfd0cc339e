"""Code that processes generate at run time: how they describe it, and what follows for unwinding and names.

base            The interface of a source of code descriptions
gdb_jit         Code registered with the GDB JIT interface
hotspot/        The code of Java virtual machines (HotSpot), read from outside
jitdump         Names, lines and unwind tables from a process's jitdump file, found through its marker mapping
libunwind       Code registered with libunwind: procedures described by directives, and tables
perf_map        Names from a process's perf map, read while it grows
process_code    All code descriptions of one process
recording_code  Run-time generated code of all processes of a recording: unwind rules and names
runtimes        The managed runtimes that pyprof reads
v8/             The code of V8, the JavaScript engine of Node.js, read from outside
"""
