"""ELF files and images.

compressed     Compressed sections: SHF_COMPRESSED (gABI "Section Compression"), .zdebug_ (older), .gnu_debugdata
dynamic        The dynamic table (gABI, "Dynamic Section") in a file and in memory
file           ELF files, read only: header, segments, sections, build ID
headers        The headers of ELF files as values, and their constants
memory_image   An ELF image rebuilt from the target's memory
memory_object  An object file that a JIT compiler keeps in memory for debuggers, with its relocations applied
named_symbols  Lookup of symbols by name
synthetic      Section headers derived from program headers, for files and memory images that have none
unwind_tables  The places of the unwind tables in an ELF file
"""
