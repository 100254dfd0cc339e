"""DWARF call frame information: .eh_frame, .debug_frame.

entries    CIEs and FDEs of one .eh_frame or .debug_frame section, and their encoded pointers
fde_index  The FDE that covers an address: the table of .eh_frame_hdr, or an index built in one pass
program    The interpreter of call frame instructions, which turns an FDE into the rows of a function
sections   .eh_frame and .debug_frame as unwind sources
"""
