"""Code that processes generate at run time: how they describe it, and what follows for unwinding and names.

base                        The interface of a source of code descriptions
gdb_jit_and_libunwind_code  Code that a process registers in its memory: with the GDB JIT interface, or with libunwind
hotspot/                    The code of Java virtual machines (HotSpot), read from outside
jit_code_of_recording       Numbers and descriptions of the JIT code in the frames of a recording
perf_map_and_jitdump        Names, lines and unwind tables from a process's jitdump file, and names from its perf map,
                            read while they grow
process_code                All code descriptions of one process: its sources, updated together
runtime_processes           The processes of a recording that generate code: which there are, and their unwind rules
v8/                         The code of V8, the JavaScript engine of Node.js, read from outside
"""
