"""DWARF call frame information: .eh_frame, .debug_frame.

debug_frame          .debug_frame, the debuggers' form of .eh_frame, often compressed and in a separate file
eh_frame             .eh_frame, the unwind table of nearly all native code, found through .eh_frame_hdr
eh_frame_hdr         The binary search table of .eh_frame_hdr (LSB Core, 10.6.2)
entries              CIEs and FDEs of one .eh_frame or .debug_frame section
fde_index            The index of the FDEs of a section, built in one pass
go_stacks            The places where Go's runtime switches stacks, which its .debug_frame does not describe
instruction_effects  States of the interpreter of call frame instructions, and the effect of each instruction
pointers             LEB128 numbers and encoded pointers in CFI
program              The interpreter of call frame instructions, which turns an FDE into the rows of a function
source               The common part of .eh_frame and .debug_frame as unwind sources
"""
