"""DWARF call frame information: .eh_frame, .debug_frame.

debug_frame   .debug_frame: the same as .eh_frame for debuggers, often compressed, often in a separate file
eh_frame      .eh_frame: the unwind table that nearly all native code has, found through .eh_frame_hdr
eh_frame_hdr  The binary search table of .eh_frame_hdr (LSB Core, 10.6.2)
entries       CIEs and FDEs of one .eh_frame or .debug_frame section
expressions   DWARF expressions that readers of other formats write, where a rule has no field for what a row says
go_stacks     Where Go's runtime leaves the stack that its .debug_frame describes
index         Which FDE covers an address: one pass over a section, once
pointers      Numbers inside CFI
program       The CFI row machine: the instructions of an FDE become the rows of a function
source        What .eh_frame and .debug_frame have in common as sources of rules
states        States of the CFI row machine, and what each instruction does to them
"""
