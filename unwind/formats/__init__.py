"""Readers of unwind formats.

Each returns the rules of pyprof.unwind.rules, so that no other package depends on a format.

breakpad/                STACK CFI and STACK WIN records of Breakpad symbol files
cfi/                     DWARF call frame information: .eh_frame, .debug_frame
exidx/                   ARM exception index tables
gdb_jit                  The GDB JIT interface: a list of object files that a process keeps in its memory for debuggers
gopclntab                Go's function table as an unwind source, and rules for the functions of Go's runtime that
                         switch stacks
libunwind_regions        An interpreter of libunwind's regions and directives, for the rule at one place of a procedure
libunwind_registrations  Unwind info that a process has registered with libunwind: its list, its entries and its tables,
                         read from memory
pdata                    The function table of a Windows x64 module (.pdata and .xdata) as an unwind source
sframe_decoder           The header, the function index and the rows of an SFrame section, V1 to V3
sframe_source            An SFrame section, V1 to V3, as an unwind source
"""
