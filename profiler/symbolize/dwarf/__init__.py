"""Source lines and inlined functions out of DWARF 2 to 5, read as far as an address needs.

aranges     Which unit has the code at an address, as .debug_aranges says
cursor      Reading DWARF's primitive encodings, and time limits for whole readings
entries     Stepping over entries that nobody asked for
forms       Abbreviations and attribute forms: how to read an entry, and how to step over it fast
inlines     Which functions were inlined at an svma: the DW_TAG_inlined_subroutine entries around it
line_table  Line number programs: which file and line an svma belongs to
lines       Source places of svmas in one object file: units found by address, read when needed, kept
scopes      What functions without a linkage name belong to: namespaces, classes, functions around their entries
units       Units: their headers, entries by offset, strings, addresses and address ranges
"""
