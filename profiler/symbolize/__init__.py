"""Names of addresses: functions, source lines and inlined functions.

breakpad_names           Names, lines and inlined functions from a Breakpad symbol file
demangle                 Demangled names of C++ and Rust, by LLVM's demanglers, and decoded names of Cython and V8
dwarf_attribute_forms    DWARF's primitive encodings, abbreviations and attribute forms: reading an entry, and skipping
                         it fast
dwarf_inlined_functions  The functions that were inlined at an address, and the qualified names of functions
dwarf_source_lines       Source places of addresses: the line number programs of the units of one object file
dwarf_units              Units: their headers, entries by offset, strings, addresses and address ranges
elf_symtab               Symbol tables of ELF files as columns: .symtab, .dynsym, .gnu_debugdata, a separate debug file
go_function_lookup       Names, lines and inlined functions of a Go program
kernel_symbols           Names of kernel functions, from /proc/kallsyms
name_cache               Caches of symbols and lines of object files, and of the finished frames of one recording
perf_map                 A reader of perf maps
resymbolize              Names for the frames of an existing profile, from files that are available now
source_files             The text of source files that a profile names, and the lines of Cython sources
symbol_table             A symbol table in columns, for lookups of the function at an address, and names for code
                         without a symbol
symbolizer               Creates the named frames of a profile from unique frame keys
"""
