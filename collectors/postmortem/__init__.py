"""Samples of threads that no longer run: core files and crash dumps.

core_collector      Samples out of a core file: one of each thread, as it was when the process died
core_modules        What was mapped where in a process that is a core file now
core_sources        Where the files of a core's process are on this machine
minidump_collector  Samples out of a minidump or a microdump: one of each thread, as it was when the dump was written
minidump_mappings   The mappings of a crash dump's process
minidump_sources    What a crash dump states of its modules, and where on this machine their files may be
saved_threads       Samples of threads that no longer run
"""
