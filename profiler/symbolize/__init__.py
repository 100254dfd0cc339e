"""Names for addresses.

dwarf/      Source lines and inlined functions out of DWARF 2 to 5, read as far as an address needs
again       Names for the frames of a recording, looked up later or elsewhere
breakpad    Names, lines and inlined functions from a Breakpad symbol file
cython      Lines of Cython's sources
demangle    Readable names: C++ (Itanium) and Rust (legacy and v0), by LLVM's demanglers (the package pycxxfilt)
described   What the symbolizer asks about code that no file describes
elf_symtab  Symbol tables of ELF files as columns: .symtab, .dynsym, .gnu_debugdata, a separate debug file
footprint   How much memory a structure holds, estimated: long containers are measured by a sample of their elements
frame_modules  The modules of frames, as a profile lists them
generated_names  Names that code generators make, as their users write them: of Cython's functions and of V8's
kernel      Names of the kernel's functions, by /proc/kallsyms, and of the calls in which threads sleep
name_cache  What was read of object files in order to name addresses. It outlives windows, address spaces and processes
perfmap     The perf map: a text file in which a process names the code that it makes, `/tmp/perf-PID.map`
plt         Names for the entries of procedure linkage tables: "malloc@plt"
settled_frames  Names that no look-up will change, for the parts of a window
source_files  The text of source files that a profile names
symbolizer  Names for addresses: unique frames in, Frame objects and their modules out
symbols     Symbols in columns: which function holds an svma
unnamed     What code without a name is called
"""
