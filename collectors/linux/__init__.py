"""The kernel's interfaces: system calls, /proc, the state of a stopped task.

bpf_syscall           bpf(2): maps, type information and programs as descriptors
child_processes       A finder of the children of sampled processes
interrupted_syscalls  System calls that a stop interrupts: which ones continue unchanged, which ones return early, and
                      how their effect is undone or counted
libc                  System calls that Python lacks, by ctypes
process_cpu_times     Processor time of a process, of some of its threads, or of its unrecorded children
process_sandbox       The rights of this process: functions that drop them permanently, and a filter of system calls
procfs                Information about processes and stopped tasks in /proc
procmap_query         Checks of single mappings of a process, and reads of memory that is still mapped as it was
sampled_arch          The architecture whose registers perf_events sample here, and that of its 32-bit code
stopped_registers     The registers of a stopped task, and what they say about the system call that the stop interrupted
"""
