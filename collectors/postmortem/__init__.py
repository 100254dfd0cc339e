"""Samples of threads that no longer run: core files and crash dumps.

core_collector      A collector for a core file: one sample of each thread, the process's mappings and their files
minidump_collector  A collector for a minidump or a microdump: one sample of each thread, the mappings and their files
saved_threads       Samples of threads that no longer run
"""
