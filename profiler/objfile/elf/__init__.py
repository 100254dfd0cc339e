"""ELF files and images.

file          ELF files, read only: header, segments, sections, build ID, and the lookup of symbols by name
memory_image  ELF images in a target's memory: rebuilt ones, and objects that a JIT compiler keeps there
sections      Sections of ELF files: headers, compressed contents, sections without headers, and the unwind tables
"""
