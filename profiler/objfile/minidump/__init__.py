"""Crash dumps of Windows, Breakpad and Crashpad.

contexts    Registers out of the CPU contexts of minidumps and microdumps
crash_dump  The content of a crash dump, whatever its format: minidump.py and minidump/microdump.py make these values
file        Minidumps: what Windows, Breakpad and Crashpad write of a process that crashed, as a CrashDump
linux       Breakpad's streams of Linux: files of /proc/PID as they were, and the dynamic loader's list of objects
microdump   Microdumps: what Breakpad writes into a log where no file can be kept, as a CrashDump
modules     The modules of a minidump: MINIDUMP_MODULE and the CodeView record that identifies it
regions     MINIDUMP_MEMORY_INFO_LIST: what is mapped where, of Windows and of Crashpad
"""
