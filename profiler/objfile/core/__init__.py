"""Core files.

memory  The memory that a core file or a crash dump holds, by address; of a core file its PT_LOAD segments
notes   The notes of a core file: threads with their registers, the process, the signal, auxv, mapped files
"""
