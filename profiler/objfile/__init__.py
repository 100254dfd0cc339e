"""Object files: which file is behind a mapping, and what it contains.

breakpad/       Breakpad symbol files: search and content
core/           Core files
elf/            ELF files and images
minidump/       Crash dumps of Windows, Breakpad and Crashpad
missing_file    The object file of a module whose file is missing
base            The interface of an object file, independent of its format
debug_files     Separate debug files: by build ID, by .gnu_debuglink (CRC checked), from debuginfod's cache (read only)
debuginfod      A client of debuginfod servers, which downloads files by build ID into the shared cache
foreign_path    Files whose names come from foreign input: a target, an object file, a core file
gopclntab       The function table that Go's linker writes into every program
growing_file    Reader of a file to which its process keeps writing
held_bytes      A limit on the content of foreign files in memory, for the whole process
images          The object file behind an address: proved to be the mapped one, with its load bias
jitdump         A reader of jitdump files
jitdump_tables  The unwind tables of a jitdump's UNWINDING_INFO, in the order and at the address of each writer
locate          Search for the local file that the target has mapped
file_access     The file system operations of all readers of object files
formats         Opens object files of any format
packages        The command that installs the debug symbols of a file
io_deadline     File operations with a timeout, for file systems that do not respond
pe              Windows modules that Wine has mapped, read from memory
source          Random access to an object file's bytes: an open file, or bytes in memory
target_structs  Structures in a target's memory, read with checks
"""
