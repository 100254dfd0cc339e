"""ELF files and images.

compressed_sections  Compressed sections: SHF_COMPRESSED (gABI "Section Compression"), .zdebug_ (older), .gnu_debugdata
file                 ELF files, read only: header, segments, sections, build ID
headers              The headers of ELF files as values, and their constants
jit_object           An object file that a JIT compiler keeps in memory for debuggers, with its relocations applied
memory_image         An ELF image rebuilt from the target's memory
named_symbols        Lookup of symbols by name
synthetic_sections   Section headers derived from program headers, for files and memory images that have none
unwind_tables        The places of the unwind tables in an ELF file
"""
