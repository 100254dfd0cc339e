"""Source lines and inlined functions from DWARF 2 to 5, read only as far as an address needs.

attribute_forms    DWARF's primitive encodings, abbreviations and attribute forms: reading an entry, and skipping it
                   fast
inlined_functions  The functions that were inlined at an address, and the qualified names of functions
source_lines       Source places of addresses: the line number programs of the units of one object file
units              Units: their headers, entries by offset, strings, addresses and address ranges
"""
