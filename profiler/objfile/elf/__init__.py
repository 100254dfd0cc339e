"""ELF files and images.

compressed     Compressed sections: SHF_COMPRESSED (gABI "Section Compression") and the older .zdebug_ form
debug_files    Separate debug files: by build-id, by .gnu_debuglink (CRC checked), from debuginfod's cache (read only)
dynamic        The dynamic table (gABI, "Dynamic Section") in a file and in memory
file           ELF files, read only: header, segments, sections, build-id
memory_image   An ELF image rebuilt from the target's memory
memory_object  An object file that a compiler keeps in memory for debuggers, made readable like any other
named_symbols  Where an object file has a symbol of a given name
synthetic      Section headers made up from program headers, for files and memory images that have none
"""
