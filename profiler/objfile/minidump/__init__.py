"""Crash dumps of Windows, Breakpad and Crashpad.

cpu_contexts   Registers from the CPU contexts of minidumps and microdumps
crash_dump     The content of a crash dump, independent of its format
file           Minidumps: crash dumps of Windows, Breakpad and Crashpad
microdump      Microdumps: crash dumps that Breakpad writes into a log
modules        The modules of a minidump: MINIDUMP_MODULE and the CodeView record that identifies it
"""
