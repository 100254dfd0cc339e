"""The kernel's interfaces: system calls, /proc, what a stopped task says.

children       Finding the children of sampled processes
file_limit     How many files we may hold open
kernel_waits   Which of the kernel's functions wait without a signal being able to end it, by /proc/kallsyms
libc           The door to the system calls that Python lacks
link_map       The dynamic loader's list of loaded objects (struct r_debug, struct link_map in <link.h>)
map_query      Is the memory of a process still mapped as we know it?
mapped_memory  Reads of a process's memory on behalf of an earlier moment: what stands there now may be another file's
perf_arch      The architecture whose registers perf_events sample here, and that of its 32-bit code
procfs         What /proc says about a process
regset         The kernel's register set of a stopped task (NT_PRSTATUS), read as that of one architecture
syscalls       Which system calls survive a ptrace stop, and which can be made to start again
task_state     What /proc says of one task right now, asked between a stop and its end
"""
