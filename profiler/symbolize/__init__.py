"""Names of addresses: functions, source lines and inlined functions.

dwarf/      Source lines and inlined functions from DWARF 2 to 5, read only as far as an address needs
resymbolize  Names for the frames of an existing profile, from files that are available now
breakpad    Names, lines and inlined functions from a Breakpad symbol file
cython      Lines of Cython sources, from the comments in the generated C file
demangle    Demangled names: C++ (Itanium) and Rust (legacy and v0), by LLVM's demanglers (the package pycxxfilt)
described   The symbolizer's interface to descriptions of run-time generated code
elf_symtab  Symbol tables of ELF files as columns: .symtab, .dynsym, .gnu_debugdata, a separate debug file
footprint   An estimate of the memory that an object uses, from samples of long containers
frame_modules  The list of the modules of a profile's frames
generated_names  Names of generated functions in the form that users write: Cython and V8
go_names    Names, lines and inlined functions of a Go program, from the function table that Go's linker writes
kernel      Names of kernel functions, from /proc/kallsyms, and of the system calls in which threads are blocked
name_cache  A cache of symbols and lines of object files, for the life of the process
perfmap     A reader of perf maps, the text files `/tmp/perf-PID.map` in which a process names its generated code
plt         Names of the entries of procedure linkage tables: "malloc@plt"
frame_cache     A cache of finished frames for the windows of one recording
source_files  The text of source files that a profile names
symbolizer  Creates the named frames of a profile from unique frame keys
symbols     A symbol table in columns, for lookups of the function at an address
unnamed     Names for code without a symbol
"""
