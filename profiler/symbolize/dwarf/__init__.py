"""Source lines and inlined functions from DWARF 2 to 5, read only as far as an address needs.

attribute_forms    Abbreviations and attribute forms: reading an entry, and skipping it fast
cursor             Readers of DWARF's primitive encodings, and time limits
inlined_functions  The functions that were inlined at an address, from DW_TAG_inlined_subroutine entries
line_table         Line number programs: the file and line of an address
qualified_names    Namespaces, classes and functions around functions without a linkage name
source_lines       Source places of addresses in one object file, from units that are read on demand and cached
units              Units: their headers, entries by offset, strings, addresses and address ranges
"""
