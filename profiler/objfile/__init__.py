"""Object files: which file is behind a mapping, and what it contains.

base                 The interface of an object file, independent of its format
breakpad/            Breakpad symbol files: search and content
byte_source          Random access to an object file's bytes, files that grow, and a limit on content in memory
core_file            Core files: the memory by address, and the notes with threads, signal and mapped files
crash_dump           The content of a crash dump, independent of its format: threads, registers, the exception
debug_files          Separate debug files on this machine, and the command that installs missing ones
elf/                 ELF files and images
gopclntab            The function table that Go's linker writes into every program
guarded_open         File system operations of the readers of object files. Only this module opens files whose names are
                     foreign
io_deadline          File operations with a timeout, for file systems that do not respond
jitdump              A reader of jitdump files
loaded_images        The object file behind an address: proved to be the mapped one, with its load bias
mapped_file_search   Search for the local file that the target has mapped
minidump             Minidumps and microdumps: crash dumps of Windows, Breakpad and Crashpad
object_file_opening  Opens object files of any format
pe                   Windows modules that Wine has mapped, read from memory
symbol_servers       Clients of HTTP servers: Breakpad symbol files by NAME/ID, debug files by build ID (debuginfod),
                     with local caches
target_structs       Structures in a target's memory, read with checks, and the dynamic loader's list of objects
"""
