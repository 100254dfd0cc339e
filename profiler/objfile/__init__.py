"""Object files: which file is behind a mapping, and what it contains.

base                    The interface of an object file, independent of its format
breakpad_index          The index of a Breakpad symbol file: the places of its records, from one pass over the file
breakpad_records        Parsers of the records of a Breakpad symbol file, and the identifiers of its module
breakpad_symbol_file    A Breakpad symbol file whose records are read on demand
breakpad_symbol_search  Search for symbol files in files, directories and servers, and checks of their text while it is
                        copied
byte_source             Random access to an object file's bytes, files that grow, and a limit on content in memory
core_file               Core files: the memory by address, and the notes with threads, signal and mapped files
debug_files             Separate debug files on this machine, and the command that installs missing ones
elf_file                ELF files, read only: header, segments, sections, build ID, and the lookup of symbols by name
elf_memory_image        ELF images in a target's memory: rebuilt ones, and objects that a JIT compiler keeps there
elf_sections            Sections of ELF files: headers, compressed contents, sections without headers, and the unwind
                        tables
gopclntab               The function table that Go's linker writes into every program
io_deadline             File operations with a timeout, for file systems that do not respond
jitdump                 A reader of jitdump files
mapped_file_search      Search for the local file that the target has mapped
mapped_object_files     The object file behind an address: proved to be the mapped one, with its load bias
minidump                Minidumps and microdumps: crash dumps of Windows, Breakpad and Crashpad
minidump_content        The content of a crash dump, independent of its format: threads, registers, the exception
object_file_opening     Opens object files of any format
pe                      Windows modules that Wine has mapped, read from memory
symbol_servers          Clients of HTTP servers: Breakpad symbol files by NAME/ID, debug files by build ID (debuginfod),
                        with local caches
target_memory_structs   Structures in a target's memory, read with checks, and the dynamic loader's list of objects
untrusted_file_access   File system operations of the readers of object files. Only this module opens files whose names
                        are foreign
"""
