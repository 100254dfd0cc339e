"""Object files: which file is behind a mapping, and what is in it.

breakpad/       Breakpad symbol files: where they are, what is in them
core/           Core files
elf/            ELF files and images
minidump/       Crash dumps of Windows, Breakpad and Crashpad
absent          An object file that is not here
base            What an object file is to everybody who reads one, whatever its format
debug_files     Separate debug files: by build-id, by .gnu_debuglink (CRC checked), from debuginfod's cache (read only)
debuginfod      A client of debuginfod servers: files by their build-id, into the cache that other clients use, too
foreign_path    Files with names from foreign input: a target, an object file, a core file
growing_file    A file that its process keeps writing
held_bytes      Content of foreign files that is in memory: bounded for the whole process
images          The object file behind an address: proved to be the mapped one, with its bias, kept open
jitdump         jitdump
jitdump_tables  The unwind tables of a jitdump's UNWINDING_INFO, in the order and at the address of each writer
locate          Which file on our disk is the one that the target has mapped
opener          What readers of object files ask of the file system
opening         Opens object files whose format is not known yet
packages        Which command brings the symbols of a file
patience        Calls on files that may never return
pe              Windows modules in memory, of Wine
source          Where an object file's bytes come from: an open file, or bytes in memory
target_structs  Structures in a target's memory, read piece by piece
"""
