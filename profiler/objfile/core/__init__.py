"""Core files.

memory  The memory in a core file or a crash dump, by address
notes   The notes of a core file: threads with their registers, the process, the signal, auxv, mapped files
"""
