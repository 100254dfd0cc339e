"""Readers of unwind formats.

Each returns the rules of pyprof.unwind.rules, so that no other package depends on a format.

breakpad/          STACK CFI and STACK WIN records of Breakpad symbol files
cfi/               DWARF call frame information: .eh_frame, .debug_frame
exidx/             ARM exception index tables
libunwind/         libunwind's dynamic unwind-info
sframe/            SFrame sections
gdb_jit            The GDB JIT interface: a list of object files that a process keeps in its memory for debuggers
go_stack_switches  Unwind rules for the functions of Go's runtime that switch stacks, from their code on x86-64
gopclntab          Go's own function table
"""
