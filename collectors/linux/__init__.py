"""The kernel's interfaces: system calls, /proc, what a stopped task says.

bpf            bpf(2): maps, type information and programs as descriptors
children       Finds the children of sampled processes
kernel_waits   Kernel functions that wait uninterruptibly, from /proc/kallsyms
libc           System calls that Python lacks, by ctypes
link_map       The dynamic loader's list of loaded objects (struct r_debug, struct link_map in <link.h>)
map_query      Checks single mappings of a process with PROCMAP_QUERY
mapped_memory  Reads the memory of a process as it was mapped earlier
perf_arch      The architecture whose registers perf_events sample here, and that of its 32-bit code
procfs         What /proc says about a process
regset         The kernel's register set of a stopped task (NT_PRSTATUS), read as that of one architecture
rights         What this process may do, and giving up rights for good
seccomp        A filter of system calls for a process that only computes, on what it has been given descriptors of
syscalls       Which system calls survive a ptrace stop, and which can be made to start again
task_state     State of one task from /proc, read between its stop and its resume
transfers      System calls that a stop may cut short
"""
