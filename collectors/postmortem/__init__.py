"""Samples of threads that no longer run: core files and crash dumps.

core_collector         A collector for a core file: one sample of each thread, as it was when the process died
core_module_files      The files of a core's process on this machine
core_modules           The mappings of a core file's process
minidump_collector     A collector for a minidump or a microdump: one sample of each thread at the time of the dump
minidump_mappings      The mappings of a crash dump's process
minidump_module_files  The data of a crash dump about its modules, and candidates for their files on this machine
saved_threads          Samples of threads that no longer run
"""
