"""Samples of threads that no longer run: core files and crash dumps.

core_process            The process in a core file: its threads, mappings and their files
crash_dump_process      The process in a minidump or a microdump: its threads, mappings and their files
saved_thread_collector  The collector of threads that no longer run
"""
