"""Object files: which file is behind a mapping, and what it contains.

base            The interface of an object file, independent of its format
breakpad/       Breakpad symbol files: search and content
byte_source     Random access to an object file's bytes: an open file, or bytes in memory
content_limit   A limit on the content of foreign files in memory, for the whole process
core/           Core files
debug_files     Separate debug files: by build ID, by .gnu_debuglink (CRC checked), from debuginfod's cache (read only)
debug_packages  The command that installs the debug symbols of a file
debuginfod      A client of debuginfod servers, which downloads files by build ID into the shared cache
elf/            ELF files and images
file_access     The file system operations of all readers of object files
foreign_path    Files whose names come from foreign input: a target, an object file, a core file
formats         Opens object files of any format
gopclntab       The function table that Go's linker writes into every program
growing_file    Reader of a file to which its process keeps writing
io_deadline     File operations with a timeout, for file systems that do not respond
jitdump         A reader of jitdump files
loaded_images   The object file behind an address: proved to be the mapped one, with its load bias
mapped_file     Search for the local file that the target has mapped
minidump/       Crash dumps of Windows, Breakpad and Crashpad
missing_file    The object file of a module whose file is missing
pe              Windows modules that Wine has mapped, read from memory
target_structs  Structures in a target's memory, read with checks
"""
