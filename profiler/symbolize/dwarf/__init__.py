"""Source lines and inlined functions out of DWARF 2 to 5, read as far as an address needs.

pyelftools reads all of this too, 20 times slower: a C++ unit of 100,000 entries would take seconds.
"""
