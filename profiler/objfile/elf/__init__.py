"""ELF files and images.

compressed     Compressed sections: SHF_COMPRESSED (gABI "Section Compression"), .zdebug_ (older), .gnu_debugdata
dynamic        The dynamic table (gABI, "Dynamic Section") in a file and in memory
file           ELF files, read only: header, segments, sections, build-id
headers        The headers of ELF files as values, and the numbers in them
memory_image   An ELF image rebuilt from the target's memory
memory_object  An object file that a compiler keeps in memory for debuggers, made readable like any other
named_symbols  Where an object file has a symbol of a given name
synthetic      Section headers made up from program headers, for files and memory images that have none
unwind_tables  Where an ELF file keeps its unwind tables
"""
