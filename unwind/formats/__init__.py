"""Readers of unwind formats.

Each returns the rules of pyprof.unwind.rules, so that no other package depends on a format.

breakpad_postfix_expressions  Breakpad's postfix expressions: an evaluator for STACK WIN, and a compiler of STACK CFI to
                              rules
breakpad_stack_cfi            STACK CFI records of a Breakpad symbol file: an unwind source, and a writer
breakpad_stack_win            STACK WIN records of a Breakpad symbol file: the callers of frames of 32-bit Windows code
cfi_cie_and_fde               CIEs and FDEs of one .eh_frame or .debug_frame section, and their encoded pointers
cfi_fde_index                 The FDE that covers an address: the table of .eh_frame_hdr, or an index built in one pass
cfi_instructions              The interpreter of call frame instructions, which turns an FDE into the rows of a function
cfi_sections                  .eh_frame and .debug_frame as unwind sources
exidx_prologue_rows           Rows inside a function's prologue and epilogues, which EXIDX does not describe, from its
                              ARM instructions
exidx_section                 The ARM exception index (.ARM.exidx, .ARM.extab) as an unwind source
exidx_unwind_instructions     The unwinding instructions of an EXIDX entry (ARM EHABI): their decoder, and a compiler to
                              a Rule
gdb_jit                       The GDB JIT interface: a list of object files that a process keeps in its memory for
                              debuggers
gopclntab                     Go's function table as an unwind source, and rules for the functions of Go's runtime that
                              switch stacks
libunwind_regions             An interpreter of libunwind's regions and directives, for the rule at one place of a
                              procedure
libunwind_registrations       Unwind info that a process has registered with libunwind: its list, its entries and its
                              tables, read from memory
pdata                         The function table of a Windows x64 module (.pdata and .xdata) as an unwind source
sframe_decoder                The header, the function index and the rows of an SFrame section, V1 to V3
sframe_source                 An SFrame section, V1 to V3, as an unwind source
"""
