"""The kernel's interfaces: system calls, /proc, the state of a stopped task.

bpf                bpf(2): maps, type information and programs as descriptors
children           A finder of the children of sampled processes
cut_short_calls    System calls that a stop may cut short
libc               System calls that Python lacks, by ctypes
link_map           The dynamic loader's list of loaded objects (struct r_debug, struct link_map in <link.h>)
map_query          Checks of single mappings of a process with PROCMAP_QUERY
privileges         The rights of this process, and functions that drop them permanently
procfs             Information about processes and stopped tasks in /proc
regset             The kernel's register set of a stopped task (NT_PRSTATUS), read as that of one architecture
sampled_arch       The architecture whose registers perf_events sample here, and that of its 32-bit code
seccomp_filter     A filter of system calls for a process that only computes and uses descriptors that it was given
syscalls           The system calls that survive a ptrace stop, and those that can be restarted
vma_checked_reads  Reads of a process's memory as it was mapped earlier
"""
